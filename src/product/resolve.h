// The info that serves given operands.
#pragma once

#include <lacewing/info.h>

#include "product/shape.h"

namespace lacewing::products {

/// The info with T settled, where it follows the operands; `op` is whom errors name.
inline SparseProductInfo resolved_for(Kind kind, const char* op, const SparseProductInfo& info, const at::Tensor& x,
                                      const at::Tensor& y) {
  if (!structure::PlanMeta::from(info.plan().sizes).is_dynamic()) {
    return info;
  }
  const ProductShape shape = check_operands(kind, op, x, y, /*accumulated=*/false);
  check_same_rows(op, shape, /*unary=*/false);
  return info.resolved(shape.rows_x.guard_int(__FILE__, __LINE__));
}

}  // namespace lacewing::products
