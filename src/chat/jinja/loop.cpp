#include "chat/jinja/loop.h"

#include "base/error.h"

namespace bev::jinja {

// loop.cycle or loop.changed.
class LoopMethod : public Object {
 public:
  LoopMethod(std::shared_ptr<Loop> loop, bool cycles) : loop_(std::move(loop)), cycles_(cycles) {}
  std::string_view type_name() const override { return "method"; }
  Extent extent() const override { return loop_->extent(); }
  bool callable() const override { return true; }
  Value call(Runtime&, const Arguments& arguments) override {
    return cycles_ ? loop_->cycle(arguments) : Value(loop_->changed(arguments));
  }

 private:
  std::shared_ptr<Loop> loop_;
  bool cycles_;
};

std::string Loop::text() const {
  return concat("<LoopContext ", at_ + 1, "/", items().size(), ">");
}

std::optional<Value> Loop::attribute(std::string_view name) const {
  auto index = static_cast<std::int64_t>(at_), length = std::ssize(items());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return depth_ + 1;
  if (name == "depth0") return depth_;
  if (name == "previtem") {
    return index > 0 ? items()[at_ - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? items()[at_ + 1] : Value::undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    auto self = std::const_pointer_cast<Loop>(shared_from_this());
    return Value(std::make_shared<LoopMethod>(std::move(self), name == "cycle"));
  }
  return std::nullopt;
}

Value Loop::cycle(const Arguments& arguments) const {
  BEV_CHECK(!arguments.positional.empty(), ErrorKind::kInput, "loop.cycle() needs values");
  return arguments.positional[at_ % arguments.positional.size()];
}

bool Loop::changed(const Arguments& arguments) {
  Value seen = Value::list(arguments.positional);
  bool other = !last_seen_ || !equal(*last_seen_, seen);
  last_seen_ = std::move(seen);
  return other;
}

}  // namespace bev::jinja
