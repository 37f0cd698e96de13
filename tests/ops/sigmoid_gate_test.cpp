// Products with the sigmoid of a gate.
#include "ops/sigmoid_gate.h"

#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

OpCase gate_case(std::string name, const Shape& shape) {
  OpCase test{.name = std::move(name),
              .inputs = {{.shape = shape}, {.shape = shape, .scale = 4}},
              .params = {}};
  test.build = [](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{{sigmoid_gate(bench.ctx, in[0], in[1])}};
  };
  return test;
}
const OpRows kGateRows("SigmoidGate", {gate_case("one", {1, 1}), gate_case("rows", {5, 7}),
                                       gate_case("many rows", {300, 129})});

}  // namespace
}  // namespace bev::test
