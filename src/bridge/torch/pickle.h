// Python's pickle format (protocols 2 to 5) as data. Nothing is imported or called: a reference to
// a class or function is a name, and what such a call would make is an object with the name and its
// arguments. Names that checkpoints do not need are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bev {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // beyond 64 bits; its little-endian bytes are `text`
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kSet,
  kDict,        // `items` are key, value, key, value, ..
  kGlobal,      // a class or function; `text` is "module.name"
  kObject,      // what calling `callable` with `arguments` would make; see below
  kPersistent,  // a reference outside of the pickle, whose id is `arguments`
};
std::string_view name_of(PickleKind kind);

// A value. Values form a graph, which may have cycles and many paths to one value: walk along known
// keys only, or to a limited depth.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::int64_t integer = 0;  // of a bool 0 or 1
  double number = 0;
  std::string_view text;  // in the pickled bytes, or in the Pickle
  // Items of a list, tuple or set; key and value pairs of a dict. Of an object those that were
  // added after its creation, as to an OrderedDict.
  std::vector<const PickleValue*> items;
  const PickleValue* callable = nullptr;   // a kGlobal
  const PickleValue* arguments = nullptr;  // a tuple
  const PickleValue* state = nullptr;      // what __setstate__ would get; null: none

  bool is(PickleKind wanted) const { return kind == wanted; }
  // True for an object made by the class or function "module.name".
  bool made_by(std::string_view name) const;
  // The value under a key of a dict, of an OrderedDict, or of an object whose state is a dict
  // (argparse.Namespace, dataclasses); nullptr if there is none.
  const PickleValue* find(std::string_view key) const;
  // Elements of a list or tuple, also of an object around one (torch.Size); empty for others.
  std::span<const PickleValue* const> elements() const;
  // Keys and values of a dict or OrderedDict, or of an object's state.
  std::vector<std::pair<const PickleValue*, const PickleValue*>> pairs() const;

  std::optional<std::int64_t> as_int() const;  // also of bools
  std::optional<double> as_number() const;     // of ints, big ints and floats
  std::optional<std::string_view> as_text() const;
};

class Pickle {
 public:
  // Reads the first pickle in the bytes, which must outlive it. Throws Error(kInput) that begins
  // with `where`.
  Pickle(std::span<const std::byte> bytes, const std::string& where);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleParser;
  std::deque<PickleValue> values_;
  std::deque<std::string> names_;
  const PickleValue* root_ = nullptr;
};

// "[1, 'a', Namespace]": the value for messages and listings, shortened.
std::string pickle_text(const PickleValue& value);

}  // namespace bev
