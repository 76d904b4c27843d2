// The whole formula on plain arrays: the reference by hand, then every ISA level against the reference, for every role
// of random forms.
#include <random>

#include "kernels/form.h"
#include "structure/edge_views.h"
#include "structure/term_views.h"
#include "support.h"

namespace lacewing::kernels::test {
namespace {

using structure::RoleRows;

/// Memory for views, with the array that was filled.
struct ViewMemory {
  std::vector<std::int64_t> words;
  std::function<void*(std::int64_t, bool)> allocate() {
    return [this](std::int64_t length, bool) {
      words.assign(static_cast<std::size_t>(length), 0);
      return words.data();
    };
  }
};

/// Random terms and edges over roles whose letters are given; the last role has none and is shared by all edges.
struct RandomForm {
  std::vector<std::string> letters;
  std::vector<std::int64_t> rows;
  std::vector<BatchMap> maps;
  std::vector<std::vector<std::int64_t>> index, lists;
  structure::TermViews terms;
  structure::EdgeViews edges;
  ViewMemory term_memory, edge_memory;
  std::int64_t extent[3] = {};  ///< of a, b and c
  std::vector<Array> tensors;
  ScalarType type;

  RandomForm(std::vector<std::string> letters_, std::vector<BatchMap> maps_, std::int64_t edge_count, ScalarType type_,
             unsigned seed)
      : letters(std::move(letters_)), maps(std::move(maps_)), type(type_) {
    std::mt19937 random(seed);
    const auto draw = [&](std::int64_t below) {
      return static_cast<std::int64_t>(random() % static_cast<unsigned>(below));
    };
    extent[0] = 19;
    extent[1] = 3;
    extent[2] = 5;
    terms.terms = 40;
    edges.edges = edge_count;
    letters.push_back("");
    maps.push_back(BatchMap::shared);
    for (std::size_t r = 0; r < letters.size(); ++r) {
      const bool scale = r + 1 == letters.size();
      rows.push_back(scale ? terms.terms : 1 + draw(6));
      terms.roles.push_back({rows.back()});
      std::vector<std::int64_t>& of = index.emplace_back();
      for (std::int64_t t = 0; t < terms.terms; ++t) {
        of.push_back(scale ? t : draw(rows.back()));
      }
      edges.map.push_back(maps[r]);
      edges.batch.push_back(maps[r] == BatchMap::list ? 4 : -1);
      std::vector<std::int64_t>& list = lists.emplace_back();
      for (std::int64_t e = 0; e < edge_count && maps[r] == BatchMap::list; ++e) {
        list.push_back(draw(4));
      }
      Array& tensor = tensors.emplace_back(type, batch_of(r) * rows[r] * elements_of(r));
      for (std::int64_t i = 0; i < tensor.count(); ++i) {
        tensor.put(i, {static_cast<double>(draw(17)) / 8 - 1, static_cast<double>(draw(17)) / 8 - 1});
      }
    }
    structure::TermSource source;
    source.terms = terms.terms;
    source.layout.resize(letters.size());
    std::vector<const std::int64_t*> list_data;
    for (std::size_t r = 0; r < letters.size(); ++r) {
      source.index.push_back(index[r].data());
      list_data.push_back(lists[r].data());
      source.order.push_back(static_cast<int>(r));
    }
    structure::build_term_views(source, terms, term_memory.allocate(), serial_executor());
    structure::build_edge_views(list_data, edges, edge_memory.allocate());
  }

  std::int64_t batch_of(std::size_t r) const {
    return maps[r] == BatchMap::own ? edges.edges : maps[r] == BatchMap::list ? 4 : 1;
  }
  std::int64_t elements_of(std::size_t r) const {
    std::int64_t count = 1;
    for (const char letter : letters[r]) {
      count *= extent[letter - 'a'];
    }
    return count;
  }

  Place place(std::size_t r, const std::string& order) const {
    Place place;
    place.data = tensors[r].data();
    std::int64_t stride = 1;
    for (std::size_t k = letters[r].size(); k-- > 0;) {
      place.letter_stride[order.find(letters[r][k])] = stride;
      stride *= extent[letters[r][k] - 'a'];
    }
    place.row_stride = stride;
    place.batch_stride = maps[r] == BatchMap::shared ? 0 : stride * rows[r];
    for (std::int8_t& column : place.layout.column) {
      column = -1;
    }
    return place;
  }

  /// The call that computes role `r` into `out`, which it makes.
  FormArgs arguments(std::size_t r, Array& out) const {
    FormArgs args;
    args.type = type;
    std::string order = letters[r];
    for (const char letter : std::string("abc")) {
      order += order.find(letter) == std::string::npos ? std::string(1, letter) : "";
    }
    args.letters = 3;
    args.out_letters = static_cast<int>(letters[r].size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      args.extent[i] = extent[order[i] - 'a'];
      args.extent_from[i] = FormArgs::kOwnExtent;
    }
    std::vector<int> factors;
    for (std::size_t f = 0; f < letters.size(); ++f) {
      if (f != r) {
        args.factor[factors.size()] = place(f, order);
        args.factor[factors.size()].conjugate = is_complex(type) && f % 2 == 0;
        factors.push_back(static_cast<int>(f));
      }
    }
    args.factors = static_cast<int>(factors.size());
    out = Array(type, batch_of(r) * rows[r] * elements_of(r), 64);
    args.out = place(r, order);
    args.out.data = out.data();
    terms.read(term_memory.words.data(), static_cast<int>(r), factors, args);
    edges.read(edge_memory.words.data(), static_cast<int>(r), factors, args);
    args.row_elements = elements_of(r);
    args.out_elements = rows[r] * elements_of(r);
    return args;
  }
};

TEST(Form, ReferenceByHand) {
  // z[0] = 2 x[0] y[1] + 3 x[1] y[0], summed over the letter that both have.
  Array x(ScalarType::f64, 4), y(ScalarType::f64, 4), s(ScalarType::f64, 2), z(ScalarType::f64, 1);
  const double values[] = {1, 2, 3, 4};
  for (int i = 0; i < 4; ++i) {
    x.put(i, values[i]);
    y.put(i, values[3 - i]);
  }
  s.put(0, 2);
  s.put(1, 3);
  const std::int64_t first[] = {0, 1}, second[] = {1, 0};
  FormArgs args;
  args.type = ScalarType::f64;
  args.factors = 3;
  const Array* const data[] = {&x, &y, &s};
  for (int f = 0; f < 3; ++f) {
    args.factor[f].data = data[f]->data();
    args.factor[f].row_stride = f < 2 ? 2 : 1;
    args.factor[f].letter_stride[0] = f < 2 ? 1 : 0;
    args.factor[f].layout.column[0] = -1;
  }
  args.factor[0].index = {first, true};
  args.factor[1].index = {second, true};
  args.out.data = z.data();
  args.letters = 1;
  args.extent[0] = 2;
  args.extent_from[0] = FormArgs::kOwnExtent;
  args.single_row = true;
  args.rows = 1;
  args.terms = 2;
  args.out_elements = 1;

  reference::form(args);

  EXPECT_EQ(z.get(0).real(), 2 * (1 * 2 + 2 * 1) + 3 * (3 * 4 + 4 * 3));
}

struct FormCase {
  std::vector<std::string> letters;
  std::vector<BatchMap> maps;
};

const FormCase kForms[] = {
    {{"a", "", "a", "a"}, {BatchMap::list, BatchMap::own, BatchMap::own, BatchMap::list}},
    {{"b", "c", "bca", "a"}, {BatchMap::own, BatchMap::own, BatchMap::own, BatchMap::own}},
    {{"a", "ab", "b"}, {BatchMap::own, BatchMap::shared, BatchMap::own}},
    {{"ab", "a", "bc"}, {BatchMap::shared, BatchMap::list, BatchMap::shared}},
    {{"a", "a", ""}, {BatchMap::own, BatchMap::own, BatchMap::own}},
    {{"", "", ""}, {BatchMap::own, BatchMap::list, BatchMap::list}},
    {{"ba", "ac", "ca", "b"}, {BatchMap::own, BatchMap::shared, BatchMap::own, BatchMap::shared}},
};

TEST(Form, EveryLevelAgreesWithTheReference) {
  for (const ScalarType type : {ScalarType::f32, ScalarType::bf16, ScalarType::f64, ScalarType::c64}) {
    for (std::size_t k = 0; k < std::size(kForms); ++k) {
      for (const std::int64_t edges : {std::int64_t{1}, std::int64_t{7}, std::int64_t{1100}}) {
        if (edges > 7 && (type != ScalarType::f32 || (k != 0 && k != 4))) {
          continue;  // the sum in parts, once
        }
        const RandomForm form(kForms[k].letters, kForms[k].maps, edges, type, static_cast<unsigned>(k));
        for (std::size_t role = 0; role < form.letters.size(); ++role) {
          Array expected;
          reference::form(form.arguments(role, expected));
          double largest = 0;
          for (std::int64_t i = 0; i < expected.count(); ++i) {
            largest = std::max(largest, std::abs(expected.get(i)));
          }
          for (const Level level : levels()) {
            if (level == Level::reference) {
              continue;
            }
            chosen_isa = static_cast<cpu::Isa>(level);
            std::optional<Array> first;
            for (const int threads : {1, 3}) {
              Array out;
              const FormArgs args = form.arguments(role, out);
              const CpuExecutor executor = backwards_executor(threads);
              Workspace workspace(cpu::form_workspace(args, threads));
              cpu::form(args, executor, workspace.data());

              const std::string where = "form " + std::to_string(k) + ", role " + std::to_string(role) + ", " +
                                        name_of(level) + ", " + std::to_string(edges) + " edges, " + name(type);
              EXPECT_TRUE(workspace.guard_untouched() && out.guard_untouched()) << where;
              for (std::int64_t i = 0; i < out.count(); ++i) {
                ASSERT_LE(std::abs(out.get(i) - expected.get(i)), 60 * epsilon(type) * largest) << where << " at " << i;
              }
              EXPECT_TRUE(!first || *first == out) << where << ": the bits depend on the threads";
              first = out;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lacewing::kernels::test
