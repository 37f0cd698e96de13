// Writes Python's pickle format, protocol 2: the few types that checkpoints are made of. Calls
// follow the order of the values; texts and names that come again are references to the first.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace bev {

class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void number(double value);
  void text(std::string_view value);
  // A class or function.
  void global(std::string_view module, std::string_view name);

  void begin_dict();  // keys and values follow
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();
  void integers(std::span<const std::int64_t> values);  // a tuple

  // An object as copyreg makes it: a class, no arguments, and a state that follows begin_object().
  void begin_object(std::string_view module, std::string_view name);
  void end_object();
  // What a call of a function or class makes; its arguments, a tuple, follow begin_call().
  void begin_call(std::string_view module, std::string_view name);
  void end_call();
  // The value before, a tuple, becomes the id of something outside of the pickle.
  void persistent();

  // The pickle; nothing may follow.
  std::string take();

 private:
  bool recall(const std::string& key);
  void remember(const std::string& key);
  void put(std::uint64_t value, int bytes);

  std::string out_;
  std::map<std::string, std::uint32_t, std::less<>> known_;
};

}  // namespace bev
