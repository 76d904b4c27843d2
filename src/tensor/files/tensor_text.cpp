#include "tensor/files/tensor_text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_real.h>

#include "tensor/construct.h"

namespace lacewing::tensor {

Components writable(const char* op, const at::Tensor& sparse) {
  Components c = checked(op, sparse);
  TORCH_CHECK(zero_fill(c), "[lacewing.", op, "] such a file holds tensors with the constant fill 0: use torch.save");
  TORCH_CHECK(c.dense_dim() == 0, "[lacewing.", op, "] such a file holds numbers as entries, not blocks of shape ",
              c.dense_shape(), ": use torch.save");
  return {c.pattern->to(at::kCPU), c.values.detach().cpu().contiguous(), {}};
}

ValueWriter::ValueWriter(const at::Tensor& given) {
  const auto type = given.scalar_type();
  if (at::isComplexType(type)) {
    values_ = at::view_as_real(given.to(at::kComplexDouble)).contiguous();
    write_ = [data = values_.const_data_ptr<double>()](std::string& text, std::int64_t e) {
      text::append(text, data[2 * e]);
      text += ' ';
      text::append(text, data[2 * e + 1]);
    };
  } else if (type == at::kDouble) {
    values_ = given.contiguous();
    write_ = [data = values_.const_data_ptr<double>()](std::string& text, std::int64_t e) {
      text::append(text, data[e]);
    };
  } else if (at::isFloatingType(type)) {
    values_ = given.to(at::kFloat).contiguous();
    write_ = [data = values_.const_data_ptr<float>()](std::string& text, std::int64_t e) {
      text::append(text, data[e]);
    };
  } else {
    values_ = given.to(at::kLong).contiguous();
    TORCH_CHECK(type != at::kUInt64 || !values_.lt(0).any().item<bool>(),
                "[lacewing.SparseTensor] a number of uint64 above 2^63 - 1 does not fit the integers of a text file");
    write_ = [data = values_.const_data_ptr<std::int64_t>()](std::string& text, std::int64_t e) {
      text::append(text, data[e]);
    };
  }
}

}  // namespace lacewing::tensor
