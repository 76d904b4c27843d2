// Computes a sparse product and its gradient with an installed Lacewing, and compares both with the same made of
// torch's own operations.

#include <lacewing/lacewing.h>

#include <ATen/ATen.h>

#include <iostream>

namespace {

bool close(const char* what, const at::Tensor& actual, const at::Tensor& expected) {
    if (at::allclose(actual, expected)) {
        return true;
    }
    std::cerr << what << " differs by up to " << (actual - expected).abs().max().item<double>() << '\n';
    return false;
}

}  // namespace

int main() {
    const auto options = at::TensorOptions().dtype(at::kDouble);
    const auto i1 = at::tensor({0, 1, 1, 2}, at::kLong);
    const auto i2 = at::tensor({1, 0, 2, 2}, at::kLong);
    const auto out = at::tensor({0, 0, 1, 2}, at::kLong);
    const auto scale = at::tensor({1.0, -2.0, 0.5, 3.0}, options);
    const auto x = at::rand({5, 3, 4}, options).requires_grad_();
    const auto y = at::rand({5, 3, 4}, options).requires_grad_();

    const auto infos = lacewing::sparse_product_infos(i1, i2, out, scale, 3, 3, 3);
    const at::Tensor z = lacewing::sparse_mul(x, y, infos.fwd, infos.bwd1, infos.bwd2);
    z.sum().backward();

    const auto x_ref = x.detach().clone().requires_grad_();
    const auto y_ref = y.detach().clone().requires_grad_();
    const auto terms = x_ref.index_select(1, i1) * y_ref.index_select(1, i2) * scale.view({1, -1, 1});
    const auto z_ref = at::zeros({5, 3, 4}, options).index_add(1, out, terms);
    z_ref.sum().backward();

    const bool value = close("the value", z, z_ref);
    const bool grad_x = close("the gradient of x", x.grad(), x_ref.grad());
    const bool grad_y = close("the gradient of y", y.grad(), y_ref.grad());
    if (!(value && grad_x && grad_y)) {
        return 1;
    }
    std::cout << "consumer: value and gradients agree with torch\n";
    return 0;
}
