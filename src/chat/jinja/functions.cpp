// Global functions of the Jinja engine.
#include <array>
#include <ctime>

#include "base/error.h"
#include "chat/jinja/builtins.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/value_text.h"

namespace bev::jinja {

namespace {

// Arguments of dict(pairs, name=value) and namespace(...).
Dict dict_of(Runtime& runtime, const Arguments& arguments) {
  Dict dict;
  BEV_CHECK(arguments.positional.size() <= 1, ErrorKind::kInput,
            "dict() takes one argument and named ones");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      dict = *from.dict();
    } else {
      for (const Value& pair : items_of(runtime, from)) {
        List both = items_of(runtime, pair);
        BEV_CHECK(both.size() == 2 && is_hashable(both[0]), ErrorKind::kInput,
                  "dict() needs pairs of a key and a value");
        runtime.spend(dict.items.size());
        dict.set(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(name, value);
  return dict;
}

Value dict_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  return dict_of(runtime, arguments);
}

Value namespace_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  return runtime.make_namespace(dict_of(runtime, arguments));
}

Value range_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  Parameters given("range", arguments, {"start", "stop", "step"});
  bool one = !given.has(1);
  std::int64_t first = (given[0], given.integer(0, 0));
  std::int64_t start = one ? 0 : first, stop = one ? first : given.integer(1, 0);
  std::int64_t step = given.integer(2, 1);
  BEV_CHECK(step != 0, ErrorKind::kInput, "range(): the step is 0");
  constexpr std::size_t kMost = 100000;  // as in Jinja's sandbox
  List items;
  while (step > 0 ? start < stop : start > stop) {
    BEV_CHECK(items.size() < kMost, ErrorKind::kInput, "range(): more than ", kMost, " numbers");
    items.push_back(start);
    if (__builtin_add_overflow(start, step, &start)) break;
  }
  return list_value(runtime, std::move(items), SequenceKind::kRange);
}

Value raise_function(Runtime&, const Value&, const Arguments& arguments) {
  Parameters given("raise_exception", arguments, {"message"});
  BEV_FAIL(ErrorKind::kInput, "the template refuses the chat: ", python_str(given[0]));
}

Value time_function(Runtime& runtime, const Value&, const Arguments& arguments) {
  Parameters given("strftime_now", arguments, {"format"});
  std::string format = (given[0], given.text(0, ""));
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  if (format.empty()) return "";
  std::string out(256 + 4 * format.size(), '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return text_value(runtime, std::move(out));
}

// joiner(): a separator that is empty the first time.
class Joiner : public Object {
 public:
  explicit Joiner(std::string text) : text_(std::move(text)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Runtime&, const Arguments&) override {
    return std::exchange(used_, true) ? text_ : std::string();
  }

 private:
  std::string text_;
  bool used_ = false;
};

Value joiner_function(Runtime&, const Value&, const Arguments& arguments) {
  Parameters given("joiner", arguments, {"sep"});
  return std::make_shared<Joiner>(given.text(0, ", "));
}

constexpr std::array kFunctions = {
    BuiltinEntry{"dict", dict_function},           BuiltinEntry{"joiner", joiner_function},
    BuiltinEntry{"namespace", namespace_function}, BuiltinEntry{"raise_exception", raise_function},
    BuiltinEntry{"range", range_function},         BuiltinEntry{"strftime_now", time_function},
};

}  // namespace

Builtin find_function(std::string_view name) { return find_builtin(kFunctions, name); }

}  // namespace bev::jinja
