// Computes a sparse product and its gradients with an installed Lacewing, and compares them with the same made of
// torch's own operations.
#include <iostream>

#include <ATen/ATen.h>

#include <lacewing/lacewing.h>

namespace {

bool close(const char* what, const at::Tensor& found, const at::Tensor& expected) {
  if (at::allclose(found, expected)) {
    return true;
  }
  std::cerr << what << " differs by up to " << (found - expected).abs().max().item<double>() << '\n';
  return false;
}

}  // namespace

int main() {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto index1 = at::tensor({0, 1, 1, 2}, at::kLong);
  const auto index2 = at::tensor({1, 0, 2, 2}, at::kLong);
  const auto output = at::tensor({0, 0, 1, 2}, at::kLong);
  const auto scale = at::tensor({1.0, -2.0, 0.5, 3.0}, options).requires_grad_();
  const auto x = at::rand({5, 3, 4}, options).requires_grad_();
  const auto y = at::rand({5, 3, 4}, options).requires_grad_();

  const auto infos = lacewing::sparse_product_infos(index1, index2, output, scale, 3, 3, 3);
  const at::Tensor z = lacewing::sparse_mul(x, y, infos.fwd, infos.bwd1, infos.bwd2);
  z.sum().backward();

  const auto x_ref = x.detach().clone().requires_grad_();
  const auto y_ref = y.detach().clone().requires_grad_();
  const auto scale_ref = scale.detach().clone().requires_grad_();
  const auto terms = x_ref.index_select(1, index1) * y_ref.index_select(1, index2) * scale_ref.view({1, -1, 1});
  const auto z_ref = at::zeros({5, 3, 4}, options).index_add(1, output, terms);
  z_ref.sum().backward();

  const bool value = close("the value", z, z_ref);
  const bool grad_x = close("the gradient of x", x.grad(), x_ref.grad());
  const bool grad_y = close("the gradient of y", y.grad(), y_ref.grad());
  const bool grad_scale = close("the gradient of scale", scale.grad(), scale_ref.grad());
  if (!(value && grad_x && grad_y && grad_scale)) {
    return 1;
  }
  std::cout << "gradient of scale: " << scale.grad().view({1, 4}) << '\n'
            << "consumer: value and gradients agree with torch\n";
  return 0;
}
