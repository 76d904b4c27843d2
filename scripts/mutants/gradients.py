"""Mutants of the gradient rules and of what carries them out."""

from __future__ import annotations

from .record import Mutant

KINDS = "src/product/kinds.h"
GRADIENTS = "src/product/gradients.cpp"
AUTOGRAD = "src/product/autograd.cpp"
LINEAR = "src/autograd/linear_op.cpp"
PLANS = "src/product/plans.cpp"
SHAPE = "src/product/shape.cpp"
OPS = "src/product/product_op.cpp"
ARGUMENTS = "src/product/kernel_args.cpp"

FOUND = "kGradientRules[static_cast<std::size_t>(kind)][second ? 1 : 0]"


def rule(name: str, wrong: str, breaks: str) -> Mutant:
    """Another rule for a gradient: `name` is the product and the operand."""
    op, operand = name.split(".")
    of_this = f"kind == Kind::{op} && {'second' if operand == 'y' else '!second'}"
    return Mutant(
        f"rule-{op}-{operand}",
        KINDS,
        f"  return {FOUND};",
        f"  static constexpr GradientRule kWrong{{{wrong}}};\n  return {of_this} ? kWrong : {FOUND};",
        ("gradient",),
        f"grad {operand} of {op}: {breaks}",
        units=("product/gradients.cpp",),
        rules=(name,),
    )


RULE_MUTANTS = (
    rule("mul.x", "Kind::inner, false, false, false", "inner instead of mul"),
    rule("outer.x", "Kind::vecmat, false, false, false", "the gradient is not transposed"),
    rule("inner.x", "Kind::scavec, false, false, false", "scavec instead of vecsca"),
    rule("vecmat.x", "Kind::mat_t_vec, false, false, false", "the matrix is not transposed"),
    rule("vecsca.x", "Kind::vecsca, false, false, false", "vecsca instead of scavec"),
    rule("scavec.x", "Kind::mul, false, false, false", "the channels are not summed"),
    rule("mat_t_vec.x", "Kind::outer, false, false, true", "the result is transposed"),
    rule("mul.y", "Kind::inner, false, false, false", "inner instead of mul"),
    rule("outer.y", "Kind::mat_t_vec, true, false, false", "the gradient is transposed"),
    rule("inner.y", "Kind::vecsca, false, false, false", "vecsca instead of scavec"),
    rule("vecmat.y", "Kind::outer, false, false, false", "the result is transposed"),
    rule("vecsca.y", "Kind::mul, false, false, false", "the channels are not summed"),
    rule("scavec.y", "Kind::scavec, false, false, false", "scavec instead of vecsca"),
    rule("mat_t_vec.y", "Kind::vecmat, false, false, false", "the matrix is not transposed"),
)

AUTOGRAD_MUTANTS = (
    Mutant(
        "grad-x-forget-scale",
        GRADIENTS,
        "conjugate(in[kInput2]), in[kGrad], scale, rotated(plans_),",
        "conjugate(in[kInput2]), in[kGrad], std::nullopt, rotated(plans_),",
        ("gradient",),
        "grad x forgets scale",
    ),
    Mutant(
        "grad-x-drop-conjugate",
        GRADIENTS,
        "conjugate(in[kInput2]), in[kGrad], scale, rotated(plans_),",
        "in[kInput2], in[kGrad], scale, rotated(plans_),",
        ("gradient",),
        "grad x does not conjugate y",
    ),
    Mutant(
        "grad-x-rotation",
        GRADIENTS,
        "conjugate(in[kInput2]), in[kGrad], scale, rotated(plans_),",
        "conjugate(in[kInput2]), in[kGrad], scale, rotated(rotated(plans_)),",
        ("gradient",),
        "grad x takes the plans of grad y",
    ),
    Mutant(
        "gradient-drop-scale-conjugate",
        GRADIENTS,
        "const OptionalTensor scale = optional(conjugate(in[kScale]));",
        "const OptionalTensor scale = optional(in[kScale]);",
        ("gradient",),
        "the gradients of the operands, that of sparse scale's input among them, do not conjugate scale",
        rules=("scale.x",),
    ),
    Mutant(
        "grad-y-rotation",
        GRADIENTS,
        "rotated(rotated(plans_)), !batch2_.has);",
        "rotated(plans_), !batch2_.has);",
        ("gradient",),
        "grad y takes the plans of grad x",
    ),
    Mutant(
        "scale-grad-exchanged",
        GRADIENTS,
        "return call_scale_grad(kind_, in[kInput1],",
        "return call_scale_grad(kind_, conjugate(in[kInput1]),",
        ("gradient",),
        "the gradient of scale conjugates x once too often",
        rules=("any.scale",),
    ),
    Mutant(
        "scale-grad-second-derivative",
        AUTOGRAD,
        "const Tensors arguments{in[0], in[1], upstream, in[2]};",
        "const Tensors arguments{in[0], in[1], at::Tensor(), in[2]};",
        ("gradient",),
        "the second derivatives by scale forget the upstream gradient",
        rules=("any.scale",),
    ),
    Mutant(
        "second-derivative-by-grad",
        AUTOGRAD,
        "const Tensors arguments = with(in, u, upstream[k]);",
        "const Tensors arguments = in;",
        ("gradient",),
        "the second derivatives read the argument where its gradient's upstream belongs",
    ),
    Mutant(
        "gradients-in-another-order",
        AUTOGRAD,
        "result[place] = full.expanded(place, gradients[k]);",
        "result[place] = full.expanded(place, gradients[places.size() - 1 - k]);",
        ("gradient",),
        "gradients that are computed together go to each other's arguments",
    ),
    Mutant(
        "operand-not-transposed",
        GRADIENTS,
        "if (rule.transpose_second) {",
        "if (false) {",
        ("gradient",),
        "the transposes of the rules are not carried out for the second operand",
        rules=("outer.x", "mat_t_vec.y"),
    ),
    Mutant(
        "shared-not-summed",
        GRADIENTS,
        ": call_product(rule.op, first, second, scale, plans, accumulated);",
        ": call_product(rule.op, first, second, scale, plans, false);",
        ("gradient",),
        "the gradient of a shared operand is not summed over n",
    ),
    Mutant(
        "forget-expand",
        GRADIENTS,
        "if (of > kInput2 || !batch.has || has_batch(gradient, channels)) {",
        "if (true) {",
        ("gradient",),
        "a gradient without n is not expanded to its operand's N",
    ),
    Mutant(
        "real-part",
        LINEAR,
        "drop_imaginary ? at::real(gradient) : gradient",
        "drop_imaginary ? at::imag(gradient) : gradient",
        ("gradient",),
        "the gradient of a real operand is not the real part",
    ),
    Mutant(
        "keep-gradient-type",
        LINEAR,
        "gradients[i] = wanted[i] ? cast(gradients[i], types_[i]) : at::Tensor();",
        "gradients[i] = wanted[i] ? gradients[i] : at::Tensor();",
        ("gradient",),
        "a gradient keeps the common type of the product",
    ),
    Mutant(
        "saved-for-scale",
        LINEAR,
        "if (inputs[i].defined() && inputs[i].requires_grad() && op_->reads(i, j)) {",
        "if (i < 2 && inputs[i].defined() && inputs[i].requires_grad() && op_->reads(i, j)) {",
        ("gradient",),
        "x is not kept where only scale needs it",
    ),
    Mutant(
        "jvp-forget-scale-tangent",
        LINEAR,
        "add(sum, op->tangent(primals, i, tangents[i], output));",
        "add(sum, op->tangent(primals, i, i == 2 ? primals[i] : tangents[i], output));",
        ("gradient",),
        "the forward-mode derivative by scale takes scale for its tangent",
        rules=("any.scale",),
    ),
    Mutant(
        "exchange-without-mirror",
        PLANS,
        "return {plans[0].mirror(), plans[2].mirror(), plans[1].mirror()};",
        "return {plans[0], plans[2], plans[1]};",
        ("gradient",),
        "exchanged operands keep the roles of their indices",
        rules=("vecmat.y",),
    ),
    Mutant(
        "exchange-keeps-backward-plans",
        PLANS,
        "return {plans[0].mirror(), plans[2].mirror(), plans[1].mirror()};",
        "return {plans[0].mirror(), plans[1].mirror(), plans[2].mirror()};",
        ("gradient",),
        "exchanged operands keep the order of the backward plans: second derivatives are wrong",
        rules=("vecmat.y",),
    ),
    Mutant(
        "derived-rows-exchanged",
        PLANS,
        "const c10::SymInt& rows = view == View::backward1 ? rows1 : rows2;",
        "const c10::SymInt& rows = view == View::backward1 ? rows2 : rows1;",
        ("gradient",),
        "derived plans have the rows of the other input",
    ),
    Mutant(
        "hash-check-removed",
        SHAPE,
        "(!known || backward.hash == (second ? forward.hash_bwd2 : forward.hash_bwd1));",
        "(!known || true);",
        ("gradient",),
        "backward infos of other terms are accepted",
    ),
    Mutant(
        "op-mirror-forgotten",
        ARGUMENTS,
        "structure::terms_of(known(op.mirrored ? shape.plan.mirror() : shape.plan), plan.const_data_ptr());",
        "structure::terms_of(known(shape.plan), plan.const_data_ptr());",
        ("gradient",),
        "scavec and mat_t_vec read index1 for index2",
        rules=("inner.y", "vecmat.x"),
    ),
    Mutant(
        "op-drop-conjugate",
        ARGUMENTS,
        "view.conjugate = tensor.is_conj();",
        "view.conjugate = false;",
        ("gradient",),
        "the conjugate bit of an operand is ignored",
    ),
    Mutant(
        "op-drop-scale-conjugate",
        OPS,
        "args.conjugate_scale = typed_scale.defined() && typed_scale.is_conj();",
        "args.conjugate_scale = false;",
        ("gradient",),
        "the conjugate bit of scale is ignored",
    ),
)

GRADIENT_MUTANTS = (*RULE_MUTANTS, *AUTOGRAD_MUTANTS)
