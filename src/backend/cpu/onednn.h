// Matrix products of one thread through oneDNN. The library's own threading is off inside a call,
// so results depend on the shape only.
#pragma once

#include "backend/cpu/product.h"

namespace bev::cpu {

// c = alpha op(a) op(b) + beta c; beta 0 does not read c. False when oneDNN refuses.
bool onednn_product(const Product& product, float alpha, const float* a, const float* b, float beta,
                    float* c);

}  // namespace bev::cpu
