"""Mutants of the gradient rules and of what carries them out."""

from __future__ import annotations

from .record import Mutant

KINDS = "src/product/kinds.h"
AUTOGRAD = "src/product/autograd.cpp"
PLANS = "src/product/plans.cpp"
SHAPE = "src/product/shape.cpp"
OPS = "src/product/product_op.cpp"


def rule(name: str, old: str, new: str, breaks: str) -> Mutant:
    """A wrong row in the tables of gradients: `name` is the product and the operand."""
    op, operand = name.split(".")
    return Mutant(
        f"rule-{op}-{operand}",
        KINDS,
        old,
        new,
        ("gradient",),
        f"grad {operand} of {op}: {breaks}",
        units=("product/autograd.cpp",),
        rules=(name,),
    )


RULE_MUTANTS = (
    rule(
        "mul.x",
        "kGradientX{{\n    {Kind::mul, false, false, false},",
        "kGradientX{{\n    {Kind::inner, false, false, false},",
        "inner instead of mul",
    ),
    rule(
        "outer.x",
        "{Kind::vecmat, false, true, false},\n    {Kind::vecsca",
        "{Kind::vecmat, false, false, false},\n    {Kind::vecsca",
        "the gradient is not transposed",
    ),
    rule(
        "inner.x",
        "{Kind::vecsca, false, false, false},\n    {Kind::mat_t_vec",
        "{Kind::scavec, false, false, false},\n    {Kind::mat_t_vec",
        "scavec instead of vecsca",
    ),
    rule(
        "vecmat.x",
        "{Kind::mat_t_vec, true, false, false}",
        "{Kind::mat_t_vec, false, false, false}",
        "the matrix is not transposed",
    ),
    rule(
        "vecsca.x",
        "{Kind::scavec, false, false, false},\n    {Kind::inner",
        "{Kind::vecsca, false, false, false},\n    {Kind::inner",
        "vecsca instead of scavec",
    ),
    rule(
        "scavec.x",
        "{Kind::inner, false, false, false},\n    {Kind::outer",
        "{Kind::mul, false, false, false},\n    {Kind::outer",
        "the channels are not summed",
    ),
    rule(
        "mat_t_vec.x",
        "{Kind::outer, false, false, false}",
        "{Kind::outer, false, false, true}",
        "the result is transposed",
    ),
    rule(
        "mul.y",
        "kGradientY{{\n    {Kind::mul, false, false, false},",
        "kGradientY{{\n    {Kind::inner, false, false, false},",
        "inner instead of mul",
    ),
    rule(
        "outer.y",
        "{Kind::mat_t_vec, false, false, false}",
        "{Kind::mat_t_vec, true, false, false}",
        "the gradient is transposed",
    ),
    rule(
        "inner.y",
        "{Kind::scavec, false, false, false},\n    {Kind::outer",
        "{Kind::vecsca, false, false, false},\n    {Kind::outer",
        "vecsca instead of scavec",
    ),
    rule(
        "vecmat.y",
        "{Kind::outer, false, false, true}",
        "{Kind::outer, false, false, false}",
        "the result is transposed",
    ),
    rule(
        "vecsca.y",
        "{Kind::inner, false, false, false},\n    {Kind::vecsca",
        "{Kind::mul, false, false, false},\n    {Kind::vecsca",
        "the channels are not summed",
    ),
    rule(
        "scavec.y",
        "{Kind::vecsca, false, false, false},\n    {Kind::vecmat",
        "{Kind::scavec, false, false, false},\n    {Kind::vecmat",
        "scavec instead of vecsca",
    ),
    rule(
        "mat_t_vec.y",
        "{Kind::vecmat, false, true, false},\n}};",
        "{Kind::vecmat, false, false, false},\n}};",
        "the matrix is not transposed",
    ),
)

AUTOGRAD_MUTANTS = (
    Mutant(
        "grad-x-forget-scale",
        AUTOGRAD,
        "conjugate(y), g, conjugate(scale), rotated(all), x)",
        "conjugate(y), g, std::nullopt, rotated(all), x)",
        ("gradient",),
        "grad x forgets scale",
    ),
    Mutant(
        "grad-x-drop-conjugate",
        AUTOGRAD,
        "conjugate(y), g, conjugate(scale), rotated(all), x)",
        "y, g, conjugate(scale), rotated(all), x)",
        ("gradient",),
        "grad x does not conjugate y",
    ),
    Mutant(
        "grad-x-rotation",
        AUTOGRAD,
        "conjugate(y), g, conjugate(scale), rotated(all), x)",
        "conjugate(y), g, conjugate(scale), rotated(rotated(all)), x)",
        ("gradient",),
        "grad x takes the plans of grad y",
    ),
    Mutant(
        "grad-y-drop-scale-conjugate",
        AUTOGRAD,
        "conjugate(x), conjugate(scale), rotated(rotated(full())), y)",
        "conjugate(x), scale, rotated(rotated(full())), y)",
        ("gradient",),
        "grad y does not conjugate scale",
    ),
    Mutant(
        "grad-y-rotation",
        AUTOGRAD,
        "conjugate(x), conjugate(scale), rotated(rotated(full())), y)",
        "conjugate(x), conjugate(scale), rotated(full()), y)",
        ("gradient",),
        "grad y takes the plans of grad x",
    ),
    Mutant(
        "scale-transpose-conjugate",
        AUTOGRAD,
        "call_product(kind, g, {}, conjugate(scale), {all[1], all[0], Plan{}}, false)",
        "call_product(kind, g, {}, scale, {all[1], all[0], Plan{}}, false)",
        ("gradient",),
        "the gradient of sparse scale does not conjugate scale",
        rules=("scale.x",),
    ),
    Mutant(
        "scale-grad-exchanged",
        AUTOGRAD,
        "result[2] = scale_kind.cast(form.grad_scale(unpack(x), unpack(y), g));",
        "result[2] = scale_kind.cast(form.grad_scale(conjugate(unpack(x)), unpack(y), g));",
        ("gradient",),
        "the gradient of scale conjugates x once too often",
        rules=("any.scale",),
    ),
    Mutant(
        "scale-grad-second-derivative",
        AUTOGRAD,
        "result[0] = form.grad_x(unpack(y), unpack(g), v, x_kind);",
        "result[0] = form.grad_x(unpack(y), unpack(g), std::nullopt, x_kind);",
        ("gradient",),
        "the second derivative by scale and x forgets the upstream gradient",
        rules=("any.scale",),
    ),
    Mutant(
        "operand-not-transposed",
        AUTOGRAD,
        "if (rule.transpose_second) {",
        "if (false) {",
        ("gradient",),
        "the transposes of the rules are not carried out for the second operand",
        rules=("outer.x", "mat_t_vec.y"),
    ),
    Mutant(
        "shared-not-summed",
        AUTOGRAD,
        "call_product(rule.op, first, second, scale, plans, !operand.batched);",
        "call_product(rule.op, first, second, scale, plans, false);",
        ("gradient",),
        "the gradient of a shared operand is not summed over n",
    ),
    Mutant(
        "forget-expand",
        AUTOGRAD,
        "if (operand.batched && !first_batched && !second_batched) {",
        "if (false) {",
        ("gradient",),
        "a gradient without n is not expanded to its operand's N",
    ),
    Mutant(
        "real-part",
        AUTOGRAD,
        "drop_imaginary ? at::real(gradient) : gradient",
        "drop_imaginary ? at::imag(gradient) : gradient",
        ("gradient",),
        "the gradient of a real operand is not the real part",
    ),
    Mutant(
        "keep-gradient-type",
        AUTOGRAD,
        "return (drop_imaginary ? at::real(gradient) : gradient).to(type);",
        "return gradient;",
        ("gradient",),
        "a gradient keeps the common type of the product",
    ),
    Mutant(
        "saved-for-scale",
        AUTOGRAD,
        "if (torch::autograd::compute_requires_grad(y, s)) {",
        "if (torch::autograd::compute_requires_grad(y)) {",
        ("gradient",),
        "x is not kept where only scale needs it",
    ),
    Mutant(
        "jvp-forget-scale-tangent",
        AUTOGRAD,
        "add_tangent(tangent, call_product(kind, primal_x, primal_y, tangent_s, plans, accumulated));",
        "add_tangent(tangent, call_product(kind, primal_x, primal_y, primal_s, plans, accumulated));",
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
        "const std::array<std::int64_t, 3> rows{0, rows1, rows2};",
        "const std::array<std::int64_t, 3> rows{0, rows2, rows1};",
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
        OPS,
        "structure::terms_of(op.mirrored ? shape.plan.mirror() : shape.plan, plan.const_data_ptr());",
        "structure::terms_of(shape.plan, plan.const_data_ptr());",
        ("gradient",),
        "scavec and mat_t_vec read index1 for index2",
        rules=("inner.y", "vecmat.x"),
    ),
    Mutant(
        "op-drop-conjugate",
        OPS,
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
