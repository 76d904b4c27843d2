// A small U-Net on the voxels of a point cloud, trained from C++ to tell the inside of a ball from the rest.
#include <cstdlib>
#include <iostream>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>

#include <lacewing/conv_layers.h>

using lacewing::VoxelTensor;
using lacewing::nn::ConvOptions;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("stem", stem);
    register_module("norm", norm);
    register_module("down", down);
    register_module("up", up);
    register_module("head", head);
  }

  VoxelTensor forward(const VoxelTensor& x) {
    const auto relu = [](const at::Tensor& t) { return t.relu(); };
    const VoxelTensor fine = norm(stem(x)).map(relu);
    const VoxelTensor coarse = down(fine).map(relu);
    return head(up(coarse).cat(fine));  // up goes back over the plan of down
  }

  lacewing::nn::SubmanifoldConv stem{ConvOptions(3, 16, {3, 3, 3}).bias(false)};
  lacewing::nn::VoxelBatchNorm norm{16};
  lacewing::nn::SparseConv down{ConvOptions(16, 32, {2, 2, 2})};
  lacewing::nn::InverseConv up{ConvOptions(32, 16, {2, 2, 2})};
  lacewing::nn::SubmanifoldConv head{ConvOptions(32, 2, {1, 1, 1})};
};
TORCH_MODULE(Net);

int main() {
  at::manual_seed(0);
  const at::Tensor points = at::randn({4000, 3});
  const at::Tensor voxels = lacewing::quantize(points, {0.2, 0.2, 0.2}, at::zeros({}, at::kInt));
  const auto [features, coordinates, inverse] = lacewing::reduce_voxels(points, voxels);
  const at::Tensor inside = features.norm(2, 1).lt(1.2).to(at::kLong);
  const VoxelTensor cloud(features, coordinates, 1);

  Net net;
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor out = torch::nn::functional::cross_entropy(net(cloud).features(), inside);
    out.backward();
    optimizer.step();
    loss = out.item<double>();
  }
  const at::Tensor found = net(cloud).features().argmax(1);
  const double right = found.eq(inside).to(at::kDouble).mean().item<double>();

  std::cout << cloud.size() << " voxels, " << cloud.cache()->size() << " plans, loss " << loss << ", right "
            << 100 * right << "%\n";
  return right > 0.95 ? EXIT_SUCCESS : EXIT_FAILURE;
}
