#include "checkpoint/megatron/tensor_names.h"

#include <array>
#include <charconv>

#include "base/text.h"

namespace bev {

namespace {

constexpr std::string_view kExperts = ".mlp.experts.", kLocalExperts = ".experts.local_experts.";
constexpr std::string_view kState = "optimizer.state.";

std::string_view without_wrappers(std::string_view name) {
  for (std::string_view prefix : {"model.", "module."}) {
    while (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

}  // namespace

bool shift_number(std::string& name, std::string_view word, std::int64_t shift) {
  std::size_t at = name.find(word);
  if (at == std::string::npos) return false;
  const char *begin = name.data() + at + word.size(), *last = name.data() + name.size();
  std::int64_t number = 0;
  auto [end, error] = std::from_chars(begin, last, number);
  constexpr std::int64_t kMost = 1 << 20;
  if (error != std::errc() || number < 0 || number > kMost) return false;
  name.replace(at + word.size(), static_cast<std::size_t>(end - begin), concat(number + shift));
  return true;
}

void name_expert(std::string& name, std::int64_t first) {
  if (shift_number(name, kLocalExperts, first)) {
    name.replace(name.find(kLocalExperts), kLocalExperts.size(), ".experts.experts.");
    return;
  }
  for (std::string_view part :
       {"linear_fc1.weight", "linear_fc2.weight", "linear_fc1.bias", "linear_fc2.bias"}) {
    std::string whole = concat(kExperts, part);
    if (!shift_number(name, whole, first)) continue;
    std::size_t at = name.find(whole);
    std::string rest = name.substr(at + whole.size());  // 3, or 3_w
    std::size_t digits = rest.find_first_not_of("0123456789");
    std::string end = digits == std::string::npos ? "" : rest.substr(digits);
    name = concat(name.substr(0, at), kExperts, "experts.", rest.substr(0, digits), ".", part, end);
    return;
  }
}

std::string plain_name(std::string_view name) {
  std::size_t chained = name.find(".optimizer.state.");
  if (name.starts_with("chained_") && chained != std::string_view::npos) {
    name.remove_prefix(chained + 1);
  }
  if (name.starts_with(kState) && name.ends_with(".step")) return "";
  std::string out(without_wrappers(name));
  for (std::string_view kind :
       {".exp_avg", ".exp_avg_sq", ".momentum_buffer", ".master_param", ".param"}) {
    if (!name.starts_with(kState) || !name.ends_with(kind)) continue;
    std::string_view inner = name.substr(kState.size());
    inner.remove_suffix(kind.size());
    out = concat(kState, kind.substr(1), ".", without_wrappers(inner));
    break;
  }
  name_expert(out, 0);
  return out;
}

}  // namespace bev
