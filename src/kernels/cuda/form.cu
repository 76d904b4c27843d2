// The whole formula on CUDA, plain: one owner for each output element, which sums in one fixed order. An element of a
// row with letters belongs to a thread, so that neighbours read neighbours; one of a row without belongs to a warp, or
// to a block where all edges are summed.
#include "kernels/cuda/device/launch.h"
#include "kernels/form.h"
#include "kernels/long_sum.h"
#include "kernels/terms.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// The owner's share of a sum: its threads take every `owners`-th piece.
struct Share {
  int lane;
  int lanes;
};

template <typename T>
__device__ accumulate_t<T> product_at(const FormArgs& args, std::int64_t edge, std::int64_t term,
                                      const std::int64_t* at) {
  auto product = one<accumulate_t<T>>();
  for (int f = 0; f < args.factors; ++f) {
    const Place& place = args.factor[f];
    const std::int64_t row = args.row_of(f, term);
    std::int64_t offset = place.offset(place.list[edge], row);
    for (int letter = 0; letter < args.letters; ++letter) {
      offset += at[letter] * place.stride(letter, row);
    }
    const auto value = widen(static_cast<const T*>(place.data)[offset]);
    product = product * (place.conjugate ? conj(value) : value);
  }
  return product;
}

/// A share of the sum of one output element; the letters of out stand in `at`.
template <typename T>
__device__ accumulate_t<T> sum_share(const FormArgs& args, std::int64_t b, std::int64_t row, std::int64_t* at,
                                     Share share) {
  LongSum<accumulate_t<T>> sum;
  const std::int64_t edge_begin = args.edge_begin(b);
  const std::int64_t term_begin = args.term_begin(row);
  const std::int64_t terms = args.term_end(row) - term_begin;
  const std::int64_t pairs = (args.edge_end(b) - edge_begin) * terms;
  const bool summed = args.letters > args.out_letters;
  // Without letters to sum, a piece is a pair of edge and term; with them, a position of the letters.
  for (std::int64_t pair = summed ? 0 : share.lane; pair < pairs; pair += summed ? 1 : share.lanes) {
    const std::int64_t edge = args.edge(edge_begin + pair / terms);
    const std::int64_t term = term_begin + pair % terms;
    std::int64_t positions = 1;
    for (int letter = args.out_letters; letter < args.letters; ++letter) {
      positions *= args.summed_extent(letter, term);
    }
    for (std::int64_t i = summed ? share.lane : 0; i < positions; i += share.lanes) {
      std::int64_t rest = i;
      for (int letter = args.letters - 1; letter >= args.out_letters; --letter) {
        const std::int64_t extent = args.summed_extent(letter, term);
        at[letter] = rest % extent;
        rest /= extent;
      }
      sum += product_at<T>(args, edge, term, at);
    }
  }
  return sum.value();
}

/// The row that an element of rows of unequal extents belongs to.
__device__ std::int64_t row_at(const FormArgs& args, std::int64_t element) {
  std::int64_t low = 0;
  std::int64_t high = args.rows - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (args.elements_before(middle) <= element) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Element `i` of all, b outermost: its b, row, letters and place in memory.
struct Element {
  std::int64_t b, row, offset;
  std::int64_t at[kMaxLetters] = {};

  __device__ Element(const FormArgs& args, std::int64_t i) {
    b = i / args.out_elements;
    std::int64_t rest = i % args.out_elements;
    row = args.first ? row_at(args, rest) : rest / args.row_elements;
    rest -= args.elements_before(row);
    offset = args.out.offset(b, row);
    for (int letter = args.out_letters - 1; letter >= 0; --letter) {
      const std::int64_t extent = args.out_extent(letter, row);
      at[letter] = rest % extent;
      rest /= extent;
      offset += at[letter] * args.out.stride(letter, row);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) form_kernel(const __grid_constant__ FormArgs args) {
  const std::int64_t total = args.batch * args.out_elements;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    Element element(args, i);
    static_cast<T*>(const_cast<void*>(args.out.data))[element.offset] =
        narrow<T>(sum_share<T>(args, element.b, element.row, element.at, {0, 1}));
  }
}

/// `Lanes` threads for each element, 32 or all of a block; their shares are added by a tree.
template <typename T, int Lanes>
__global__ void __launch_bounds__(kThreads) form_sum_kernel(const __grid_constant__ FormArgs args) {
  using Acc = accumulate_t<T>;
  __shared__ alignas(16) unsigned char memory[kThreads * sizeof(Acc)];
  Acc* const parts = reinterpret_cast<Acc*>(memory) + threadIdx.x / Lanes * Lanes;
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  const std::int64_t total = args.batch * args.out_elements;
  const std::int64_t owners = static_cast<std::int64_t>(gridDim.x) * (kThreads / Lanes);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (kThreads / Lanes) + threadIdx.x / Lanes;
  const std::int64_t rounds = (total + owners - 1) / owners;
  for (std::int64_t round = 0; round < rounds; ++round) {  // equal for all threads of a block
    const std::int64_t i = first + round * owners;
    Element element(args, min(i, total - 1));
    parts[lane] = sum_share<T>(args, element.b, element.row, element.at, {lane, Lanes});
    __syncthreads();
    for (int half = Lanes / 2; half > 0; half /= 2) {
      if (lane < half) {
        parts[lane] += parts[lane + half];
      }
      __syncthreads();
    }
    if (lane == 0 && i < total) {
      static_cast<T*>(const_cast<void*>(args.out.data))[element.offset] = narrow<T>(parts[0]);
    }
    __syncthreads();
  }
}

}  // namespace

void form(const FormArgs& args, const CudaExecutor& executor) {
  const int lanes = args.out_letters > 0 ? 1 : args.out_map == BatchMap::shared ? kThreads : 32;
  const Launch shape{"form", blocks_for(args.batch * args.out_elements, kThreads / lanes), kThreads};
  visit_types(args.type, false, [&](auto scalar, auto) {
    using T = decltype(scalar);
    auto* const kernel = lanes == 1    ? form_kernel<T>
                         : lanes == 32 ? form_sum_kernel<T, 32>
                                       : form_sum_kernel<T, kThreads>;
    launch(shape, executor, kernel, args);
  });
}

}  // namespace lacewing::kernels::cuda
