// Everything but the torch::nn layers (conv_layers.h): differentiable sparse tensor operations for PyTorch.
#pragma once

#include <lacewing/attention.h>
#include <lacewing/backend.h>
#include <lacewing/conv.h>
#include <lacewing/etp.h>
#include <lacewing/formula.h>
#include <lacewing/info.h>
#include <lacewing/product.h>
#include <lacewing/tensor.h>
#include <lacewing/tensor_files.h>
#include <lacewing/voxel_tensor.h>
