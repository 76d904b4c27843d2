// What a call of the formula will do, in words: for users, and for tests that count.
#include <sstream>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "kernels/cpu/form_schedule.h"
#include "product/form_args.h"
#include "product/form_calls.h"

namespace lacewing::products {
namespace {

using kernels::BatchMap;
using kernels::FormArgs;

/// Runs of terms of a row that differ in rows without letters alone: each is met once by the others.
std::int64_t folded_terms(const FormArgs& args, const kernels::cpu::FormSchedule& schedule) {
  std::int64_t runs = 0;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    std::vector<std::int64_t> before;
    for (std::int64_t term = args.term_begin(row); term < args.term_end(row); ++term) {
      std::vector<std::int64_t> rows;
      for (int i = 0; i < schedule.lettered; ++i) {
        rows.push_back(args.row_of(schedule.factor[i], term));
      }
      runs += term == args.term_begin(row) || rows != before ? 1 : 0;
      before = std::move(rows);
    }
  }
  return runs;
}

/// Positions of all letters, where no layout tells them term by term.
std::int64_t positions(const FormArgs& args) {
  std::int64_t count = 1;
  for (int letter = 0; letter < args.letters; ++letter) {
    count *= args.extent_from[letter] == FormArgs::kOwnExtent ? args.extent[letter] : 1;
  }
  return count;
}

std::string order_of_sums(const FormArgs& args, const kernels::cpu::FormSchedule& schedule, bool cuda) {
  std::ostringstream text;
  text << (args.out_map == BatchMap::own      ? "terms in order"
           : args.out_map == BatchMap::shared ? "edges in order, terms inside"
                                              : "edges of a batch row in order, terms inside");
  if (!cuda && schedule.parts > 1) {
    text << "; in parts of " << schedule.part << " edges that are added in order";
  }
  if (cuda && args.out_letters == 0) {
    text << "; over " << (args.out_map == BatchMap::shared ? 256 : 32) << " threads that are added by a tree";
  }
  return text.str();
}

std::string explain(at::TensorList operands, const std::optional<at::Tensor>& scale, at::TensorList plan,
                    c10::SymIntArrayRef sizes, std::string_view form, std::int64_t role) {
  constexpr const char* op = "product_explain";
  const auto r = static_cast<int>(role);
  std::vector<at::Tensor> tensors = by_role(op, Form::parse(op, form), r, operands, scale);
  const bool cuda = plan[0].is_cuda();
  const std::vector<at::Tensor> host{plan[0].cpu(), plan[1].cpu()};
  // Shapes, strides and dtypes alone are looked at.
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                                  at::device(at::kMeta).dtype(tensor.scalar_type()))
                              : tensor;
  }
  const FormCall call = check_form(op, form, sizes, r, tensors, {});
  const at::ScalarType type = form_dtype(call, tensors);
  const at::Tensor out = at::empty_symint(call.shape(r), at::device(at::kMeta).dtype(type));
  const FormArgs args = form_arguments(call, tensors, host, out);
  const auto schedule = kernels::cpu::schedule_form(args);
  std::int64_t bytes = static_cast<std::int64_t>(out.nbytes() + host[0].nbytes() + host[1].nbytes());
  for (const at::Tensor& tensor : tensors) {
    bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  }
  const std::int64_t folded = folded_terms(args, schedule);
  const bool reference = backend() == Backend::reference;
  const bool tuned = !cuda && !reference;
  const std::int64_t met = tuned ? folded : args.terms;
  std::ostringstream text;
  text << "form: " << call.form.text() << "\n"
       << "kernel: "
       << (reference ? "reference, serial"
           : cuda    ? "cuda, one owner for each element"
                     : "cpu");
  if (tuned) {
    text << (schedule.vector < 0 ? ", no letters" : ", vectors over ");
    if (schedule.vector >= 0) {
      const std::string& kept = call.form.role(r).letters;
      std::string letters = kept;
      for (const char letter : call.form.letters()) {
        letters += kept.find(letter) == std::string::npos ? std::string(1, letter) : "";
      }
      text << letters[static_cast<std::size_t>(schedule.vector)];
    }
  }
  text << "\nfolding: " << args.terms << " terms"
       << (tuned && met < args.terms ? " summed to " + std::to_string(met) : "")
       << "\nmultiply-adds: " << args.edges * met * positions(args) << "\nbytes: " << bytes
       << "\nworkspace: " << (tuned ? schedule.workspace(args, torch_executor().max_threads()) : 0)
       << "\norder of sums: " << order_of_sums(args, schedule, cuda);
  return text.str();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(
      m, "product_explain(Tensor[] operands, Tensor? scale, Tensor[] plan, SymInt[] sizes, str form, int role) -> str");
}

TORCH_LIBRARY_IMPL(lacewing, CompositeExplicitAutograd, m) { m.impl("product_explain", explain); }

}  // namespace lacewing::products
