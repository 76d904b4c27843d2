#include "product/form.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace lacewing::products {
namespace {

using kernels::BatchMap;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Reads roles one after the other.
class Reader {
 public:
  Reader(const char* op, std::string_view text) : op_(op), text_(text) {}

  FormRole role() {
    FormRole role;
    for (; at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '#'); ++at_) {
      if (text_[at_] == '#') {
        role.layout_letters = static_cast<int>(role.letters.size());
      } else {
        role.letters += text_[at_];
      }
    }
    role.has_rows = !take(".");
    return role;
  }
  void map(FormRole& role) {
    role.map_by_rank = take("?");
    role.map = role.map_by_rank ? BatchMap::own
               : take("!")      ? BatchMap::shared
               : take("@")      ? BatchMap::list
                                : BatchMap::own;
    if (role.map == BatchMap::own && !role.map_by_rank) {
      expect("o");
    }
  }
  bool take(std::string_view token) {
    const bool here = text_.substr(at_, token.size()) == token;
    at_ += here ? token.size() : 0;
    return here;
  }
  void expect(std::string_view token) {
    TORCH_CHECK(take(token), "[lacewing.", op_, "] \"", text_, "\" is not the text of a form: expected \"", token,
                "\" at ", at_);
  }
  void expect_end() const {
    TORCH_CHECK(at_ == text_.size(), "[lacewing.", op_, "] \"", text_, "\" is not the text of a form: it goes on at ",
                at_);
  }

 private:
  const char* op_;
  std::string_view text_;
  std::size_t at_ = 0;
};

void check_letters(const char* op, std::string_view text, const std::string& role) {
  for (const char letter : role) {
    TORCH_CHECK(is_letter(letter), "[lacewing.", op, "] \"", text, "\" has '", letter,
                "', which is no letter: a product is written like \"u,v,uvw->w\"");
    TORCH_CHECK(std::count(role.begin(), role.end(), letter) == 1, "[lacewing.", op, "] letter ", letter,
                " stands twice in \"", role, "\" of \"", text, "\": a letter stands at most once in a role");
  }
}

void check_counts(const char* op, const Form& form) {
  TORCH_CHECK(form.operands() <= Form::kMaxOperands, "[lacewing.", op, "] a product has at most ", Form::kMaxOperands,
              " operands, not ", form.operands());
  const std::size_t letters = form.letters().size();
  TORCH_CHECK(letters <= kernels::kMaxLetters, "[lacewing.", op, "] a product has at most ", kernels::kMaxLetters,
              " letters, those of vmap counted in, not ", letters);
}

}  // namespace

std::string Form::letters() const {
  std::string all;
  for (const FormRole& role : roles) {
    for (const char letter : role.letters) {
      if (all.find(letter) == std::string::npos) {
        all += letter;
      }
    }
  }
  return all;
}

char Form::unused_letter(const char* op) const {
  const std::string used = letters();
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    if (used.find(letter) == std::string::npos) {
      return letter;
    }
  }
  TORCH_CHECK(false, "[lacewing.", op, "] no letter is left for a dim of vmap");
}

bool Form::multiplies_matrices() const {
  const std::string all = letters();
  const std::string& kept = role(output()).letters;
  return all.size() > 1 ||
         std::any_of(all.begin(), all.end(), [&](char letter) { return kept.find(letter) == std::string::npos; });
}

std::string Form::text() const {
  std::string text = terms_text() + "|";
  for (int r = 0; r < scale(); ++r) {
    const FormRole& of = role(r);
    text += of.map_by_rank ? "?" : of.map == BatchMap::shared ? "!" : of.map == BatchMap::list ? "@" : "o";
  }
  return text;
}

std::string Form::terms_text() const {
  std::string text;
  for (int r = 0; r < count(); ++r) {
    const FormRole& of = role(r);
    text += r == 0 ? "" : r == output() ? "->" : r == scale() ? ";" : ",";
    text += of.has_layout() ? of.letters.substr(0, static_cast<std::size_t>(of.layout_letters)) + "#" : "";
    text += of.dims();
    text += of.has_rows ? "" : ".";
  }
  return text;
}

Form Form::parse(const char* op, std::string_view text) {
  Form form;
  Reader reader(op, text);
  do {
    form.roles.push_back(reader.role());
  } while (reader.take(","));
  reader.expect("->");
  form.roles.push_back(reader.role());
  reader.expect(";");
  form.roles.push_back(reader.role());
  form.roles.back().map = BatchMap::shared;
  reader.expect("|");
  for (int r = 0; r < form.scale(); ++r) {
    reader.map(form.role(r));
  }
  reader.expect_end();
  check_counts(op, form);
  return form;
}

Form Form::of_letters(const char* op, std::string_view text) {
  std::string plain;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain), [](char c) { return c != ' '; });
  const std::size_t arrow = plain.find("->");
  TORCH_CHECK(arrow != std::string::npos && plain.find("->", arrow + 1) == std::string::npos, "[lacewing.", op,
              "] a product is written like \"u,v,uvw->w\", with one \"->\", not \"", text, "\"");
  Form form;
  const auto add = [&](const std::string& letters) {
    check_letters(op, text, letters);
    form.roles.push_back({letters, -1, true, BatchMap::own, true});
  };
  std::size_t begin = 0;
  for (std::size_t comma = plain.find(','); comma < arrow; comma = plain.find(',', begin)) {
    add(plain.substr(begin, comma - begin));
    begin = comma + 1;
  }
  add(plain.substr(begin, arrow - begin));
  add(plain.substr(arrow + 2));
  form.roles.push_back({"", -1, true, BatchMap::shared, false});
  check_counts(op, form);
  return form;
}

std::string role_name(const Form& form, int role) {
  return role == form.scale()    ? std::string("scale")
         : role == form.output() ? std::string("grad")
                                 : "operands[" + std::to_string(role) + "]";
}

}  // namespace lacewing::products
