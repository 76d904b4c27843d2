// The tasks of a form on the CPU. Compiled once for each ISA level.
#include "kernels/cpu/form_isa.h"

#include <memory>

#include "common/deal.h"
#include "kernels/cpu/form_terms.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

template <typename T>
struct FormRunner {
  using Acc = accumulate_t<T>;

  const FormArgs& args;
  const FormSchedule& plan;
  const CpuExecutor& executor;
  Acc* scratch;

  std::int64_t threads() const { return plan.work < kSerialWork ? 1 : executor.max_threads(); }

  std::int64_t row_boundary(std::int64_t share, std::int64_t shares) const {
    return args.single_row ? args.rows * share / shares
                           : share_boundary(args.rows, share, shares, [&](std::int64_t row) {
                               return row == args.rows ? args.terms : args.term_begin(row);
                             });
  }
  std::int64_t batch_boundary(std::int64_t share, std::int64_t shares) const {
    return args.out_map == BatchMap::list
               ? share_boundary(args.batch, share, shares, [&](std::int64_t b) { return args.edge_segments[b]; })
               : args.batch * share / shares;
  }

  /// Writes the sums of a row, rounded, to its place in the output.
  void store(std::int64_t b, std::int64_t row, const Acc* sums) const {
    T* const out = static_cast<T*>(args.output()) + args.out.offset(b, row);
    if (!args.out.layout) {
      for (std::int64_t i = 0; i < args.row_elements; ++i) {
        out[i] = narrow<T>(sums[i]);
      }
      return;
    }
    std::int64_t at[kMaxLetters] = {};
    const std::int64_t elements = args.elements_before(row + 1) - args.elements_before(row);
    for (std::int64_t i = 0; i < elements; ++i) {
      std::int64_t offset = 0;
      for (int letter = 0; letter < args.out_letters; ++letter) {
        offset += at[letter] * args.out.stride(letter, row);
      }
      out[offset] = narrow<T>(sums[i]);
      for (int letter = args.out_letters - 1; letter >= 0 && ++at[letter] == args.out_extent(letter, row); --letter) {
        at[letter] = 0;
      }
    }
  }

  std::int64_t terms_of(std::int64_t row) const { return args.term_end(row) - args.term_begin(row); }

  /// Whether a row has more terms than a block of a long sum, over the edges of b where they are a list; all edges are
  /// summed in parts.
  bool is_long(std::int64_t b, std::int64_t row) const {
    const std::int64_t edges = args.out_map == BatchMap::list ? args.edge_end(b) - args.edge_begin(b) : 1;
    return plan.may_be_long && edges * terms_of(row) > kSumBlock;
  }

  void add_whole(FormTerms<T>& terms, std::int64_t edge, std::int64_t row, Acc* sums) const {
    terms.add(edge, row, args.term_begin(row), args.term_end(row), sums);
  }

  /// The sums of a row over the edges at [first, last), in blocks; `own` is what a thread has of scratch.
  void sum_long(FormTerms<T>& terms, std::int64_t first, std::int64_t last, std::int64_t row, Acc* own,
                Acc* sums) const {
    using Long = LongSum<Acc>;
    static_assert(sizeof(Long) <= kLongSumElements * sizeof(Acc));
    const std::int64_t n = args.elements_before(row + 1) - args.elements_before(row);
    Acc* const block = own;
    auto* const totals = reinterpret_cast<Long*>(own + n);
    std::uninitialized_fill_n(totals, n, Long{});
    std::fill_n(block, n, Acc{});
    std::int64_t left = kSumBlock;
    const auto end_block = [&] {
      for (std::int64_t i = 0; i < n; ++i) {
        totals[i] += block[i];
        block[i] = Acc{};
      }
      left = kSumBlock;
    };
    for (std::int64_t place = first; place < last; ++place) {
      for (std::int64_t term = args.term_begin(row); term < args.term_end(row);) {
        const std::int64_t stop = std::min(args.term_end(row), term + left);
        terms.add(args.edge(place), row, term, stop, block);
        left -= stop - term;
        term = stop;
        if (left == 0) {
          end_block();
        }
      }
    }
    end_block();
    for (std::int64_t i = 0; i < n; ++i) {
      sums[i] = totals[i].value();
    }
  }

  /// Sums that are kept in the output, edge by edge.
  void run_direct(FormTerms<T>& terms, std::int64_t b, std::int64_t begin, std::int64_t end, Acc* own) const {
    if constexpr (std::is_same_v<T, Acc>) {
      Acc* const out = static_cast<Acc*>(args.output()) + b * args.out.batch_stride;
      std::fill(out + begin * args.row_elements, out + end * args.row_elements, Acc{});
      const std::int64_t first = args.edge_begin(b);
      const std::int64_t last = args.edge_end(b);
      for (std::int64_t place = first; place < last; ++place) {
        for (std::int64_t row = begin; row < end; ++row) {
          if (!is_long(b, row)) {
            add_whole(terms, args.edge(place), row, out + row * args.row_elements);
          }
        }
      }
      for (std::int64_t row = begin; plan.may_be_long && row < end; ++row) {
        if (is_long(b, row)) {
          sum_long(terms, first, last, row, own, out + row * args.row_elements);
        }
      }
    }
  }

  /// Sums that are kept in scratch, row by row.
  void run_rounded(FormTerms<T>& terms, std::int64_t b, std::int64_t begin, std::int64_t end, Acc* sums) const {
    const std::int64_t first = args.edge_begin(b);
    const std::int64_t last = args.edge_end(b);
    for (std::int64_t row = begin; row < end; ++row) {
      if (is_long(b, row)) {
        sum_long(terms, first, last, row, sums, sums);
      } else {
        std::fill(sums, sums + args.row_elements, Acc{});
        for (std::int64_t place = first; place < last; ++place) {
          add_whole(terms, args.edge(place), row, sums);
        }
      }
      store(b, row, sums);
    }
  }

  /// Every output row is computed by one task: tasks are (share of the batch, share of the rows).
  void whole() const {
    const std::int64_t batches = std::clamp<std::int64_t>(args.batch, 1, 16 * kTasks);
    const std::int64_t shares = std::clamp<std::int64_t>(kTasks / batches, 1, std::max<std::int64_t>(args.rows, 1));
    deal_tasks(executor, batches * shares, threads(), [&](std::int64_t worker) {
      return [&, terms = FormTerms<T>(args, plan), sums = scratch + worker * plan.scratch](std::int64_t first,
                                                                                           std::int64_t last) mutable {
        for (std::int64_t task = first; task < last; ++task) {
          const std::int64_t begin = row_boundary(task % shares, shares);
          const std::int64_t end = row_boundary(task % shares + 1, shares);
          const std::int64_t batch_end = batch_boundary(task / shares + 1, batches);
          for (std::int64_t b = batch_boundary(task / shares, batches); b < batch_end; ++b) {
            if (plan.direct) {
              run_direct(terms, b, begin, end, sums);
            } else {
              run_rounded(terms, b, begin, end, sums);
            }
          }
        }
      };
    });
  }

  /// One output for all edges, in parts whose sums are added by a tree of pairs: tasks are (part, share of the rows).
  void in_parts() const {
    Acc* const partial = scratch + plan.scratch * executor.max_threads();
    const std::int64_t shares = std::clamp<std::int64_t>(kTasks / plan.parts, 1, std::max<std::int64_t>(args.rows, 1));
    deal_tasks(executor, plan.parts * shares, threads(), [&](std::int64_t worker) {
      return [&, terms = FormTerms<T>(args, plan), own = scratch + worker * plan.scratch](std::int64_t first,
                                                                                          std::int64_t last) mutable {
        for (std::int64_t task = first; task < last; ++task) {
          const std::int64_t part = task / shares;
          const std::int64_t begin = row_boundary(task % shares, shares);
          const std::int64_t end = row_boundary(task % shares + 1, shares);
          Acc* const sums = partial + part * args.out_elements;
          std::fill(sums + args.elements_before(begin), sums + args.elements_before(end), Acc{});
          const std::int64_t edge_end = std::min(args.edges, (part + 1) * plan.part);
          for (std::int64_t edge = part * plan.part; edge < edge_end; ++edge) {
            for (std::int64_t row = begin; row < end; ++row) {
              if (!is_long(0, row)) {
                add_whole(terms, edge, row, sums + args.elements_before(row));
              }
            }
          }
          for (std::int64_t row = begin; plan.may_be_long && row < end; ++row) {
            if (is_long(0, row)) {
              sum_long(terms, part * plan.part, edge_end, row, own, sums + args.elements_before(row));
            }
          }
        }
      };
    });
    executor.parallel_for(0, args.rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t last = args.elements_before(row + 1);
        for (std::int64_t step = 1; step < plan.parts; step *= 2) {
          for (std::int64_t part = 0; part + step < plan.parts; part += 2 * step) {
            Acc* const to = partial + part * args.out_elements;
            const Acc* const from = to + step * args.out_elements;
            for (std::int64_t i = args.elements_before(row); i < last; ++i) {
              to[i] += from[i];
            }
          }
        }
        store(0, row, partial + args.elements_before(row));
      }
    });
  }
};

}  // namespace

void form(const FormArgs& args, const FormSchedule& schedule, const CpuExecutor& executor, void* workspace) {
  visit_types(args.type, false, [&](auto scalar, auto) {
    using T = decltype(scalar);
    const FormRunner<T> runner{args, schedule, executor, static_cast<accumulate_t<T>*>(workspace)};
    if (schedule.parts > 1) {
      runner.in_parts();
    } else {
      runner.whole();
    }
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
