#include "backend/cpu/onednn.h"

#include <omp.h>

#include <dnnl.hpp>

namespace bev::cpu {

namespace {
struct Library {
  dnnl::engine engine;
  bool has_bf16;
};

// The cap on the instruction set must come before anything else asks oneDNN.
Library open_library() {
  dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
  return {.engine = dnnl::engine(dnnl::engine::kind::cpu, 0),
          .has_bf16 = dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx512_core_bf16};
}

const Library& library() {
  static const Library opened = open_library();
  return opened;
}

// OpenMP's thread count is a setting of the calling thread.
class SingleThread {
 public:
  SingleThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThread() { omp_set_num_threads(before_); }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int before_;
};

using Dims = dnnl::memory::dims;
using DataType = dnnl::memory::data_type;

dnnl::memory::desc operand(std::int64_t rows, std::int64_t columns, bool transposed,
                           std::int64_t leading) {
  return {{rows, columns}, DataType::bf16, transposed ? Dims{1, leading} : Dims{leading, 1}};
}

void matmul(const Product& product, const Bf16* a, const Bf16* b, bool accumulate, float* c) {
  const dnnl::engine& engine = library().engine;
  auto a_desc = operand(product.m, product.k, product.transpose_a, product.lda);
  auto b_desc = operand(product.k, product.n, product.transpose_b, product.ldb);
  dnnl::memory::desc c_desc({product.m, product.n}, DataType::f32, Dims{product.ldc, 1});
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  // oneDNN keeps the compiled code of known shapes, so this is a look-up.
  dnnl::matmul multiply(
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, c_desc), attributes, engine));
  dnnl::stream stream(engine);
  multiply.execute(stream, {{DNNL_ARG_SRC, {a_desc, engine, const_cast<Bf16*>(a)}},
                            {DNNL_ARG_WEIGHTS, {b_desc, engine, const_cast<Bf16*>(b)}},
                            {DNNL_ARG_DST, {c_desc, engine, c}}});
  stream.wait();
}
}  // namespace

bool onednn_has_bf16() { return library().has_bf16; }

bool onednn_product(const Product& product, float alpha, const float* a, const float* b, float beta,
                    float* c) {
  library();
  SingleThread single;
  return dnnl_sgemm(product.transpose_a ? 'T' : 'N', product.transpose_b ? 'T' : 'N', product.m,
                    product.n, product.k, alpha, a, product.lda, b, product.ldb, beta, c,
                    product.ldc) == dnnl_success;
}

bool onednn_product(const Product& product, const Bf16* a, const Bf16* b, bool accumulate,
                    float* c) {
  SingleThread single;
  try {
    matmul(product, a, b, accumulate, c);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace bev::cpu
