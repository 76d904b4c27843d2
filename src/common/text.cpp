#include "common/text.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace lacewing::text {
namespace {

constexpr std::int64_t kPartBytes = 1 << 18;
constexpr std::int64_t kPartEntries = 1 << 14;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) {
    text.remove_prefix(1);
  }
  return text;
}

bool is_entry(std::string_view line, char comment) {
  const std::string_view text = without_blanks(line);
  return !text.empty() && text.front() != comment;
}

/// A number at the very beginning of a token and over all of it.
template <typename Number>
bool parse(std::string_view token, Number& value) {
  if (!token.empty() && token.front() == '+') {
    token.remove_prefix(1);
  }
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  return error == std::errc() && end == token.data() + token.size();
}

template <typename Number>
void append_number(std::string& text, Number value) {
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  text.append(buffer.data(), end);
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

File opened(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (!file) {
    throw FileError(std::string("it cannot be opened: ") + std::strerror(errno));
  }
  return file;
}

}  // namespace

std::string printable(std::string_view message) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text;
}

std::string read_file(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    throw FileError("it is a directory");
  }
  const File file = opened(path, "rb");
  std::string bytes;
  if (std::fseek(file.get(), 0, SEEK_END) == 0) {
    const long size = std::ftell(file.get());
    std::rewind(file.get());
    bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  }
  const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (got != bytes.size() || std::ferror(file.get()) != 0) {
    throw FileError("it cannot be read beyond byte " + std::to_string(got));
  }
  return bytes;
}

void write_file(const std::string& path, const std::vector<std::string>& parts) {
  File file = opened(path, "wb");
  std::int64_t bytes = 0;
  for (const std::string& part : parts) {
    if (std::fwrite(part.data(), 1, part.size(), file.get()) != part.size()) {
      throw FileError("it cannot be written beyond byte " + std::to_string(bytes) + ": " + std::strerror(errno));
    }
    bytes += static_cast<std::int64_t>(part.size());
  }
  if (std::fclose(file.release()) != 0) {
    throw FileError(std::string("it cannot be written: ") + std::strerror(errno));
  }
}

std::string_view LineReader::token(const char* what) {
  rest_ = without_blanks(rest_);
  const auto end = std::find_if(rest_.begin(), rest_.end(), is_blank);
  const std::string_view found = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
  if (found.empty()) {
    fail(std::string(what) + " is missing");
  }
  rest_.remove_prefix(found.size());
  return found;
}

std::int64_t LineReader::integer(const char* what) {
  const std::string_view found = token(what);
  std::int64_t value = 0;
  if (!parse(found, value)) {
    fail(std::string(what) + " is \"" + std::string(found.substr(0, 40)) + "\", which is no integer");
  }
  return value;
}

double LineReader::real(const char* what) {
  const std::string_view found = token(what);
  double value = 0;
  if (!parse(found, value)) {
    fail(std::string(what) + " is \"" + std::string(found.substr(0, 40)) + "\", which is no number");
  }
  return value;
}

std::int64_t LineReader::whole(const char* what) {
  const std::string_view found = token(what);
  std::int64_t value = 0;
  double number = 0;
  if (parse(found, value)) {
    return value;
  }
  constexpr double limit = 9223372036854775808.0;
  if (!parse(found, number) || number != std::floor(number) || number < -limit || number >= limit) {
    fail(std::string(what) + " is \"" + std::string(found.substr(0, 40)) + "\", which is no integer");
  }
  return static_cast<std::int64_t>(number);
}

bool LineReader::at_end() { return without_blanks(rest_).empty(); }

void LineReader::finish() {
  if (!at_end()) {
    fail("\"" + std::string(without_blanks(rest_).substr(0, 40)) + "\" is more than an entry has");
  }
}

std::optional<std::string_view> Lines::next() {
  if (rest_.empty()) {
    return std::nullopt;
  }
  const std::size_t end = std::min(rest_.find('\n'), rest_.size());
  const std::string_view line = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  ++number_;
  return line;
}

std::optional<LineReader> Lines::next_entry(char comment) {
  while (const auto line = next()) {
    if (is_entry(*line, comment)) {
      return LineReader(*line, number_);
    }
  }
  return std::nullopt;
}

void check_announced(std::int64_t entries, std::int64_t bytes_of_one, const LineReader& line, const Lines& rest) {
  const auto bytes = static_cast<std::int64_t>(rest.rest().size());
  // The last line may lack its end.
  if (entries > (bytes + 1) / bytes_of_one) {
    line.fail("it announces " + std::to_string(entries) + " entries, but the " + std::to_string(bytes) +
              " bytes that follow hold " + std::to_string((bytes + 1) / bytes_of_one) + " at most");
  }
}

Entries::Entries(const Lines& lines, char comment, const CpuExecutor& executor) : comment_(comment) {
  std::string_view rest = lines.rest();
  while (!rest.empty()) {
    const std::size_t wanted = std::min<std::size_t>(kPartBytes, rest.size());
    const std::size_t end = std::min(rest.find('\n', wanted - 1), rest.size() - 1) + 1;
    parts_.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  first_entry_.assign(parts_.size() + 1, 0);
  first_line_.assign(parts_.size() + 1, 0);
  executor.parallel_for(0, static_cast<std::int64_t>(parts_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto p = static_cast<std::size_t>(begin); p < static_cast<std::size_t>(end); ++p) {
      Lines own(parts_[p]);
      while (const auto line = own.next()) {
        first_entry_[p + 1] += is_entry(*line, comment) ? 1 : 0;
      }
      first_line_[p + 1] = own.number();
    }
  });
  first_line_[0] = lines.number();
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    first_entry_[p + 1] += first_entry_[p];
    first_line_[p + 1] += first_line_[p];
  }
}

void Entries::each(const std::function<void(LineReader&, std::int64_t)>& read, const CpuExecutor& executor) const {
  std::vector<std::optional<FileError>> errors(parts_.size());
  executor.parallel_for(0, static_cast<std::int64_t>(parts_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto p = static_cast<std::size_t>(begin); p < static_cast<std::size_t>(end); ++p) {
      Lines own(parts_[p]);
      std::int64_t entry = first_entry_[p];
      try {
        while (const auto line = own.next()) {
          if (is_entry(*line, comment_)) {
            LineReader reader(*line, first_line_[p] + own.number());
            read(reader, entry++);
            reader.finish();
          }
        }
      } catch (const FileError& error) {
        errors[p] = error;
      }
    }
  });
  for (const auto& error : errors) {
    if (error) {
      throw *error;
    }
  }
}

void append(std::string& text, std::int64_t value) { append_number(text, value); }
void append(std::string& text, double value) { append_number(text, value); }
void append(std::string& text, float value) { append_number(text, value); }

std::vector<std::string> written(std::int64_t count, const std::function<void(std::string&, std::int64_t)>& write,
                                 const CpuExecutor& executor) {
  const std::int64_t parts = (count + kPartEntries - 1) / kPartEntries;
  std::vector<std::string> texts(static_cast<std::size_t>(parts));
  executor.parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      for (std::int64_t e = p * kPartEntries; e < std::min(count, (p + 1) * kPartEntries); ++e) {
        write(texts[static_cast<std::size_t>(p)], e);
      }
    }
  });
  return texts;
}

}  // namespace lacewing::text
