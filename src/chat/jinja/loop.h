// The variable "loop" inside a loop.
#pragma once

#include "chat/jinja/object.h"

namespace bev::jinja {

class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  Loop(List items, std::int64_t depth) : items_(Value::list(std::move(items))), depth_(depth) {}
  std::string_view type_name() const override { return "LoopContext"; }
  std::string text() const override;
  Extent extent() const override { return items_.extent(); }
  std::optional<Value> attribute(std::string_view name) const override;

  void go_to(std::size_t index) { at_ = index; }
  const Value& item() const { return items()[at_]; }
  std::int64_t depth() const { return depth_; }

 private:
  friend class LoopMethod;
  const List& items() const { return items_.sequence()->items; }
  Value cycle(const Arguments& arguments) const;
  bool changed(const Arguments& arguments);

  Value items_;
  std::int64_t depth_ = 0;
  std::size_t at_ = 0;
  std::optional<Value> last_seen_;  // argument of the last loop.changed()
};

}  // namespace bev::jinja
