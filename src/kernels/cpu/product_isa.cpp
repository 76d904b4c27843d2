// The tasks of a product on the CPU. Compiled once for each ISA level.
#include "kernels/cpu/product_isa.h"

#include "common/deal.h"
#include "kernels/cpu/folded_rows.h"
#include "kernels/cpu/product_rows.h"
#include "kernels/cpu/scale_grad_terms.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

template <typename T, typename Index>
struct Runner {
  using Acc = accumulate_t<T>;

  const ProductArgs& args;
  const Schedule& schedule;
  const CpuExecutor& executor;
  Acc* scratch;

  T* row_target(std::int64_t n, std::int64_t row) const {
    return static_cast<T*>(args.output()) + n * args.z.stride_n + row * args.z.stride_m;
  }

  /// Every n has its own output, and its terms are folded: tasks are n.
  void folded() const {
    deal_tasks(executor, args.batch, schedule.threads(executor), [&](std::int64_t worker) {
      return [&, rows = FoldedRows<T, Index>(args, schedule, scratch + worker * schedule.scratch)](
                 std::int64_t begin, std::int64_t end) mutable {
        for (std::int64_t n = begin; n < end; ++n) {
          rows.run(n, row_target(n, 0));
        }
      };
    });
  }

  /// Every n has its own output: tasks are (group of n, share of the rows).
  void separate() const {
    const TermsView<Index> terms(args.terms);
    const bool batches = ProductRows<T, Index>(args, schedule, scratch).batches();
    const std::int64_t group = batches ? kBatchRows : 1;
    const std::int64_t groups = (args.batch + group - 1) / group;
    const std::int64_t shares =
        std::clamp<std::int64_t>(kTasks / std::max<std::int64_t>(groups, 1), 1, std::max<std::int64_t>(terms.rows, 1));
    deal_tasks(executor, groups * shares, schedule.threads(executor), [&](std::int64_t worker) {
      return [&, rows = ProductRows<T, Index>(args, schedule, scratch + worker * schedule.scratch)](
                 std::int64_t begin, std::int64_t end) mutable {
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t n = task / shares * group;
          const std::int64_t count = std::min(group, args.batch - n);
          const std::int64_t row_end = row_boundary(terms, task % shares + 1, shares);
          rows.start(n);
          const std::int64_t row_begin = row_boundary(terms, task % shares, shares);
          for (std::int64_t row = row_begin; row < row_end; ++row) {
            if (batches) {
              rows.run_batch(n, static_cast<int>(count), row, row_target(n, row), args.z.stride_n);
            } else {
              rows.run(n, n + 1, row, {row_target(n, row), nullptr});
            }
          }
        }
      };
    });
  }

  /// One output for all n: tasks are (part of n, share of the rows); parts are added in order.
  void accumulated() const {
    const TermsView<Index> terms(args.terms);
    const std::int64_t parts = schedule.parts;
    const std::int64_t shares = std::clamp<std::int64_t>(kTasks / parts, 1, std::max<std::int64_t>(terms.rows, 1));
    Acc* const partial = scratch + schedule.scratch * executor.max_threads();
    deal_tasks(executor, parts * shares, schedule.threads(executor), [&](std::int64_t worker) {
      return [&, rows = ProductRows<T, Index>(args, schedule, scratch + worker * schedule.scratch)](
                 std::int64_t begin, std::int64_t end) mutable {
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t part = task / shares;
          const std::int64_t row_end = row_boundary(terms, task % shares + 1, shares);
          for (std::int64_t row = row_boundary(terms, task % shares, shares); row < row_end; ++row) {
            Acc* const sink = parts == 1 ? nullptr : partial + (part * terms.rows + row) * schedule.row_elements;
            rows.run(args.batch * part / parts, args.batch * (part + 1) / parts, row, {row_target(0, row), sink});
          }
        }
      };
    });
    if (parts > 1) {
      add_parts(partial);
    }
  }

 private:
  void add_parts(const Acc* partial) const {
    const std::int64_t stride = args.terms.rows * schedule.row_elements;
    executor.parallel_for(0, args.terms.rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const z = row_target(0, row);
        const Acc* const from = partial + row * schedule.row_elements;
        for (std::int64_t i = 0; i < schedule.row_elements; ++i) {
          Acc sum = from[i];
          for (std::int64_t part = 1; part < schedule.parts; ++part) {
            sum += from[part * stride + i];
          }
          z[i] = narrow<T>(sum);
        }
      }
    });
  }
};

template <typename T, typename Index>
void scale_grad_typed(const ScaleGradArgs& grad, const Schedule& schedule, const CpuExecutor& executor,
                      void* workspace) {
  using Acc = accumulate_t<T>;
  const ProductArgs& args = grad.product;
  const TermsView<Index> terms(args.terms);
  const auto* const inverse_segments = static_cast<const Index*>(args.terms.inverse_segments);
  const auto* const inverse_terms = static_cast<const Index*>(args.terms.inverse_terms);
  Acc* const scratch = static_cast<Acc*>(workspace);
  Acc* const by_term = scratch + schedule.scratch * executor.max_threads();
  T* const out = static_cast<T*>(grad.out);
  const bool repeated = inverse_segments != nullptr;
  if (!repeated) {
    std::fill_n(out, args.terms.entries, T{});
  }
  const std::int64_t shares = std::clamp<std::int64_t>(terms.rows, 1, kTasks);
  deal_tasks(executor, shares, schedule.threads(executor), [&](std::int64_t worker) {
    return [&, form = ScaleGradTerms<T, Index>(args, schedule, scratch + worker * schedule.scratch)](std::int64_t begin,
                                                                                                     std::int64_t end) {
      const std::int64_t row_end = row_boundary(terms, end, shares);
      for (std::int64_t row = row_boundary(terms, begin, shares); row < row_end; ++row) {
        for (std::int64_t term = terms.begin(row); term < terms.end(row); ++term) {
          const Acc value = form.run(row, term);
          if (repeated) {
            by_term[term] = value;
          } else {
            out[terms.entry(term)] = narrow<T>(value);
          }
        }
      }
    };
  });
  if (repeated) {
    for (std::int64_t entry = 0; entry < args.terms.entries; ++entry) {
      LongSum<Acc> sum;
      for (auto i = inverse_segments[entry]; i < inverse_segments[entry + 1]; ++i) {
        sum += by_term[inverse_terms[i]];
      }
      out[entry] = narrow<T>(sum.value());
    }
  }
}

}  // namespace

void product(const ProductArgs& args, const Schedule& schedule, const CpuExecutor& executor, void* workspace) {
  visit_types(args.type, args.terms.wide, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    const Runner<T, decltype(index)> runner{args, schedule, executor, static_cast<accumulate_t<T>*>(workspace)};
    if (args.accumulate) {
      runner.accumulated();
    } else if (schedule.folds) {
      runner.folded();
    } else {
      runner.separate();
    }
  });
}

void scale_grad(const ScaleGradArgs& args, const Schedule& schedule, const CpuExecutor& executor, void* workspace) {
  visit_types(args.product.type, args.product.terms.wide, [&](auto scalar, auto index) {
    scale_grad_typed<decltype(scalar), decltype(index)>(args, schedule, executor, workspace);
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
