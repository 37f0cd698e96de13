#include <bit>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "bridge/torch/pickle.h"
#include "bridge/torch/pickle_names.h"

namespace bev {

// Python's pickle machine: a stack of values, marks in it, and a memo.
class PickleParser {
 public:
  PickleParser(Pickle& out, std::span<const std::byte> bytes, const std::string& where)
      : out_(out),
        text_(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
        where_(where) {}

  const PickleValue* parse() {
    check(size_of_rest() >= 2 && text_[0] == '\x80', "does not begin as a pickle of protocol 2 on");
    while (true) {
      auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      if (!literal(code) && !container(code) && !memo(code) && !object(code)) {
        fail(concat("opcode ", static_cast<int>(code), " is not read"));
      }
    }
    check(stack_.size() == 1 && marks_.empty(), "ends with values left over");
    return stack_[0];
  }

 private:
  using Value = PickleValue*;

  [[noreturn]] void fail(std::string_view what) const {
    BEV_FAIL(ErrorKind::kInput, where_, ": pickle: ", what, " (byte ", at_, ")");
  }
  void check(bool good, std::string_view what) const {
    if (!good) fail(what);
  }

  std::size_t size_of_rest() const { return text_.size() - at_; }
  std::string_view take(std::uint64_t count) {
    check(count <= size_of_rest(), "is truncated");
    std::string_view out = text_.substr(at_, count);
    at_ += count;
    return out;
  }
  // A little-endian number of `bytes` bytes.
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }
  std::string_view line() {
    std::size_t end = text_.find('\n', at_);
    check(end != std::string_view::npos, "is truncated");
    std::string_view out = take(end - at_);
    take(1);
    return out;
  }

  Value make(PickleKind kind) {
    out_.values_.emplace_back();
    out_.values_.back().kind = kind;
    return &out_.values_.back();
  }
  bool push(Value value) {
    stack_.push_back(value);
    return true;
  }
  bool push_text(PickleKind kind, std::string_view text) {
    Value value = make(kind);
    value->text = text;
    return push(value);
  }
  bool push_int(std::int64_t integer) {
    Value value = make(PickleKind::kInt);
    value->integer = integer;
    return push(value);
  }
  bool push_bool(bool on) {
    Value value = make(PickleKind::kBool);
    value->integer = on ? 1 : 0;
    return push(value);
  }
  // Two's complement of any length, as LONG1 and LONG4 have it.
  bool push_long(std::string_view bytes) {
    if (bytes.size() > sizeof(std::int64_t)) return push_text(PickleKind::kBigInt, bytes);
    bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80u) != 0;
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return push_int(value);
  }

  Value top() const {
    std::size_t floor = marks_.empty() ? 0 : marks_.back();
    check(stack_.size() > floor, "takes a value where there is none");
    return stack_.back();
  }
  Value pop() {
    Value value = top();
    stack_.pop_back();
    return value;
  }
  // The values since the last mark, which they are popped with.
  std::vector<const PickleValue*> pop_marked() {
    check(!marks_.empty(), "ends a group that was not begun");
    auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  std::vector<const PickleValue*> pop_last(std::size_t count) {
    std::vector<const PickleValue*> values(count);
    for (std::size_t i = count; i > 0; --i) values[i - 1] = pop();
    return values;
  }
  bool push_group(PickleKind kind, std::vector<const PickleValue*> items) {
    Value value = make(kind);
    value->items = std::move(items);
    return push(value);
  }

  bool literal(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        check(number(1) <= 5, "is of a protocol after 5");
        return true;
      case 0x95:  // FRAME
        check(number(8) <= size_of_rest(), "is truncated");
        return true;
      case 'N':
        return push(make(PickleKind::kNone));
      case 0x88:
        return push_bool(true);
      case 0x89:
        return push_bool(false);
      case 'J':  // BININT
        return push_int(static_cast<std::int32_t>(static_cast<std::uint32_t>(number(4))));
      case 'K':
        return push_int(static_cast<std::int64_t>(number(1)));
      case 'M':
        return push_int(static_cast<std::int64_t>(number(2)));
      case 0x8a:  // LONG1
        return push_long(take(number(1)));
      case 0x8b: {  // LONG4
        return push_long(take(number(4)));
      }
      case 'G': {  // BINFLOAT, big-endian
        Value value = make(PickleKind::kFloat);
        value->number = std::bit_cast<double>(__builtin_bswap64(number(8)));
        return push(value);
      }
      default:
        return string(code);
    }
  }

  bool string(unsigned char code) {
    switch (code) {
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING, a text of Python 2
        return push_text(PickleKind::kText, take(number(1)));
      case 'X':
      case 'T':
        return push_text(PickleKind::kText, take(number(4)));
      case 0x8d:
        return push_text(PickleKind::kText, take(number(8)));
      case 'C':  // SHORT_BINBYTES
        return push_text(PickleKind::kBytes, take(number(1)));
      case 'B':
        return push_text(PickleKind::kBytes, take(number(4)));
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        return push_text(PickleKind::kBytes, take(number(8)));
      default:
        return false;
    }
  }

  bool container(unsigned char code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ']':
        return push(make(PickleKind::kList));
      case '}':
        return push(make(PickleKind::kDict));
      case ')':
        return push(make(PickleKind::kTuple));
      case 0x8f:
        return push(make(PickleKind::kSet));
      case 't':
        return push_group(PickleKind::kTuple, pop_marked());
      case 0x91:  // FROZENSET
        return push_group(PickleKind::kSet, pop_marked());
      case 0x85:
      case 0x86:
      case 0x87:  // TUPLE1 to TUPLE3
        return push_group(PickleKind::kTuple, pop_last(code - 0x84u));
      case 'l':
        return push_group(PickleKind::kList, pop_marked());
      case 'd':
        return push_pairs(pop_marked());
      default:
        return adds(code);
    }
  }
  bool push_pairs(std::vector<const PickleValue*> items) {
    check(items.size() % 2 == 0, "has a key without a value");
    return push_group(PickleKind::kDict, std::move(items));
  }

  // Opcodes that add items to the container below them.
  bool adds(unsigned char code) {
    switch (code) {
      case 'a':  // APPEND
        return add(pop_last(1), PickleKind::kList);
      case 'e':  // APPENDS
        return add(pop_marked(), PickleKind::kList);
      case 0x90:  // ADDITEMS
        return add(pop_marked(), PickleKind::kSet);
      case 's':  // SETITEM
        return add(pop_last(2), PickleKind::kDict);
      case 'u':  // SETITEMS
        return add(pop_marked(), PickleKind::kDict);
      default:
        return false;
    }
  }
  bool add(const std::vector<const PickleValue*>& items, PickleKind kind) {
    Value to = top();
    check(to->kind == kind || to->kind == PickleKind::kObject,
          "adds items to what is no container");
    check(kind != PickleKind::kDict || items.size() % 2 == 0, "has a key without a value");
    to->items.insert(to->items.end(), items.begin(), items.end());
    return true;
  }

  bool memo(unsigned char code) {
    switch (code) {
      case 'q':
        return put(number(1));
      case 'r':
        return put(number(4));
      case 0x94:  // MEMOIZE
        return put(memo_.size());
      case 'h':
        return get(number(1));
      case 'j':
        return get(number(4));
      case '0':
        return pop_one();
      case '1':  // POP_MARK
        pop_marked();
        return true;
      case '2':  // DUP
        return push(top());
      default:
        return false;
    }
  }
  bool put(std::uint64_t index) {
    memo_[index] = top();
    return true;
  }
  bool get(std::uint64_t index) {
    auto found = memo_.find(index);
    check(found != memo_.end(), "refers to a value that it does not have");
    return push(found->second);
  }
  bool pop_one() {
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
    } else {
      pop();
    }
    return true;
  }

  bool object(unsigned char code) {
    switch (code) {
      case 'c': {  // GLOBAL
        std::string_view module = line();
        return global(module, line());
      }
      case 0x93: {  // STACK_GLOBAL
        std::vector<const PickleValue*> names = pop_last(2);
        check(names[0]->is(PickleKind::kText) && names[1]->is(PickleKind::kText),
              "names a class by what is no text");
        return global(names[0]->text, names[1]->text);
      }
      case 'R':     // REDUCE
      case 0x81: {  // NEWOBJ
        std::vector<const PickleValue*> parts = pop_last(2);
        return push_object(parts[0], parts[1]);
      }
      case 0x92: {  // NEWOBJ_EX: also arguments by name, which nothing here has
        std::vector<const PickleValue*> parts = pop_last(3);
        check(parts[2]->is(PickleKind::kDict) && parts[2]->items.empty(),
              "makes an object with arguments by name");
        return push_object(parts[0], parts[1]);
      }
      case 'b': {  // BUILD
        Value state = pop();
        check(top()->kind == PickleKind::kObject, "gives a state to what is no object");
        top()->state = state;
        return true;
      }
      case 'Q': {  // BINPERSID
        Value value = make(PickleKind::kPersistent);
        value->arguments = pop();
        return push(value);
      }
      default:
        return false;
    }
  }

  bool global(std::string_view module, std::string_view name) {
    std::string whole = concat(module, ".", name);
    BEV_CHECK(is_known_python_name(whole), ErrorKind::kInput, where_, ": pickle: refers to ",
              printable(whole), ", which is not among the types that are read; nothing was run");
    auto [entry, added] = globals_.try_emplace(whole, nullptr);
    if (added) {
      out_.names_.push_back(whole);
      entry->second = make(PickleKind::kGlobal);
      entry->second->text = out_.names_.back();
    }
    return push(entry->second);
  }
  // A name from a file in a message.
  static std::string printable(std::string_view name) {
    std::string out(name.substr(0, 100));
    for (char& letter : out) {
      if (letter < ' ' || letter > '~') letter = '?';
    }
    return out;
  }

  bool push_object(const PickleValue* callable, const PickleValue* arguments) {
    check(callable->is(PickleKind::kGlobal), "calls what is no name");
    check(arguments->is(PickleKind::kTuple), "calls a name without a tuple of arguments");
    Value value = make(PickleKind::kObject);
    value->callable = callable;
    value->arguments = arguments;
    return push(value);
  }

  Pickle& out_;
  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
  std::unordered_map<std::string, Value> globals_;
};

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& where) {
  root_ = PickleParser(*this, bytes, where).parse();
}

}  // namespace bev
