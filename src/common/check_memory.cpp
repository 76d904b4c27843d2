#include <ATen/EmptyTensor.h>

#include <lacewing/dispatch/torch.h>

namespace lacewing {

void check_memory(const char* op, const char* argument, const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const std::size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                              static_cast<std::size_t>(tensor.storage_offset()));
  const std::size_t held = tensor.storage().nbytes();
  TORCH_CHECK(held >= needed, "[lacewing.", op, "] ", argument, " of shape ", shape_text(tensor.sizes()),
              " has no memory: its storage was freed (FSDP reshards parameters after forward) and holds ", held,
              " of its ", needed, " bytes");
}

void check_memory(const char* op, std::initializer_list<std::pair<const char*, const at::Tensor&>> all) {
  for (const auto& [argument, tensor] : all) {
    if (tensor.defined()) {
      check_memory(op, argument, tensor);
    }
  }
}

}  // namespace lacewing
