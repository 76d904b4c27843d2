// The cross product of vectors as a sparse product: z[0] = x[1] y[2] - x[2] y[1] and so on, and its gradient.
#include <iostream>

#include <ATen/ATen.h>

#include <lacewing/lacewing.h>

int main() {
  const auto index1 = at::tensor({1, 2, 2, 0, 0, 1}, at::kLong);
  const auto index2 = at::tensor({2, 1, 0, 2, 1, 0}, at::kLong);
  const auto output = at::tensor({0, 0, 1, 1, 2, 2}, at::kLong);
  const auto sign = at::tensor({1.0, -1.0, 1.0, -1.0, 1.0, -1.0});
  const auto infos = lacewing::sparse_product_infos(index1, index2, output, sign, 3, 3, 3);

  // (N, M, C): two pairs of vectors, one channel.
  const auto x = at::tensor({1.0, 0.0, 0.0, 1.0, 2.0, 3.0}).view({2, 3, 1}).requires_grad_();
  const auto y = at::tensor({0.0, 1.0, 0.0, 4.0, 5.0, 6.0}).view({2, 3, 1});
  const at::Tensor z = lacewing::sparse_mul(x, y, infos);
  z.sum().backward();

  std::cout << "x cross y:\n" << z.view({2, 3}) << "\ngradient of its sum by x:\n" << x.grad().view({2, 3}) << '\n';
  const bool right =
      z.allclose(at::linalg_cross(x, y, 1)) && x.grad().allclose(at::linalg_cross(y, at::ones_like(y), 1));
  return right ? 0 : 1;
}
