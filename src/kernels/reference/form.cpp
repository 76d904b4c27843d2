// The oracle: serial, one output element at a time, straight from the formula.
#include "kernels/form.h"

#include "kernels/long_sum.h"
#include "kernels/terms.h"

namespace lacewing::kernels::reference {
namespace {

/// The position of each letter.
using Letters = std::int64_t[kMaxLetters];

/// Steps letters [begin, end) to the next position within their extents, the last one fastest; false after the last.
bool next(Letters& at, const Letters& extent, int begin, int end) {
  for (int letter = end - 1; letter >= begin; --letter) {
    if (++at[letter] < extent[letter]) {
      return true;
    }
    at[letter] = 0;
  }
  return false;
}

bool any_empty(const Letters& extent, int begin, int end) {
  for (int letter = begin; letter < end; ++letter) {
    if (extent[letter] <= 0) {
      return true;
    }
  }
  return false;
}

template <typename T>
accumulate_t<T> value_at(const FormArgs& args, int f, std::int64_t edge, std::int64_t term, const Letters& at) {
  const Place& place = args.factor[f];
  const std::int64_t row = args.row_of(f, term);
  std::int64_t offset = place.offset(place.list[edge], row);
  for (int letter = 0; letter < args.letters; ++letter) {
    offset += at[letter] * place.stride(letter, row);
  }
  const auto value = widen(static_cast<const T*>(place.data)[offset]);
  return place.conjugate ? conj(value) : value;
}

template <typename T>
accumulate_t<T> element(const FormArgs& args, std::int64_t b, std::int64_t row, Letters& at, Letters& extent) {
  LongSum<accumulate_t<T>> sum;
  for (std::int64_t place = args.edge_begin(b); place < args.edge_end(b); ++place) {
    for (std::int64_t term = args.term_begin(row); term < args.term_end(row); ++term) {
      for (int letter = args.out_letters; letter < args.letters; ++letter) {
        extent[letter] = args.summed_extent(letter, term);
        at[letter] = 0;
      }
      if (any_empty(extent, args.out_letters, args.letters)) {
        continue;
      }
      do {
        auto product = one<accumulate_t<T>>();
        for (int f = 0; f < args.factors; ++f) {
          product = product * value_at<T>(args, f, args.edge(place), term, at);
        }
        sum += product;
      } while (next(at, extent, args.out_letters, args.letters));
    }
  }
  return sum.value();
}

template <typename T>
void form_typed(const FormArgs& args) {
  T* const out = static_cast<T*>(args.output());
  for (std::int64_t b = 0; b < args.batch; ++b) {
    for (std::int64_t row = 0; row < args.rows; ++row) {
      Letters at{};
      Letters extent{};
      for (int letter = 0; letter < args.out_letters; ++letter) {
        extent[letter] = args.out_extent(letter, row);
      }
      if (any_empty(extent, 0, args.out_letters)) {
        continue;
      }
      do {
        std::int64_t offset = args.out.offset(b, row);
        for (int letter = 0; letter < args.out_letters; ++letter) {
          offset += at[letter] * args.out.stride(letter, row);
        }
        out[offset] = narrow<T>(element<T>(args, b, row, at, extent));
      } while (next(at, extent, 0, args.out_letters));
    }
  }
}

}  // namespace

void form(const FormArgs& args) {
  visit_types(args.type, false, [&](auto scalar, auto) { form_typed<decltype(scalar)>(args); });
}

}  // namespace lacewing::kernels::reference
