// What the readers and writers of tensors in text files share.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "common/file_sentence.h"
#include "common/text.h"
#include "tensor/sparse_impl.h"

namespace lacewing::tensor {

/// The components of a tensor that a text file can hold, on the host and without a gradient: fill 0, no dense dims.
Components writable(const char* op, const at::Tensor& sparse);

/// Appends the number of an entry as text: one for real and integer values, two for complex ones.
class ValueWriter {
 public:
  explicit ValueWriter(const at::Tensor& values);
  void operator()(std::string& text, std::int64_t entry) const { write_(text, entry); }

 private:
  at::Tensor values_;
  std::function<void(std::string&, std::int64_t)> write_;
};

}  // namespace lacewing::tensor
