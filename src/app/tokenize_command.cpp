// tokenize: texts to ids and back.
#include <algorithm>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/output.h"
#include "base/thread_pool.h"
#include "infer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

Json read_array(const std::string& path) {
  constexpr int kMaxDepth = 8;
  std::string text = read_file(path);
  check_json(text, path, kMaxDepth);
  Json json = Json::parse(text);
  BEV_CHECK(json.is_array(), ErrorKind::kInput, path, ": not a JSON array");
  return json;
}

std::vector<std::string> read_texts(const std::string& path) {
  std::vector<std::string> texts;
  for (const Json& text : read_array(path)) {
    BEV_CHECK(text.is_string(), ErrorKind::kInput, path, ": entry ", texts.size(),
              " is not a string");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

std::vector<Ids> read_ids(const std::string& path) {
  std::vector<Ids> rows;
  for (const Json& row : read_array(path)) {
    BEV_CHECK(row.is_array() && std::ranges::all_of(row,
                                                    [](const Json& id) {
                                                      return id.is_number_unsigned() &&
                                                             id.get<std::uint64_t>() < 1u << 31;
                                                    }),
              ErrorKind::kInput, path, ": entry ", rows.size(), " is not an array of ids");
    rows.push_back(row.get<Ids>());
  }
  return rows;
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens) {
  Ids ids = tokenizer.encode(text);
  if (add_special_tokens) tokenizer.add_special_tokens(ids);
  return ids;
}

std::string decode(const Tokenizer& tokenizer, Ids ids, bool skip_special_tokens) {
  if (skip_special_tokens) {
    std::erase_if(ids, [&](std::int32_t id) { return tokenizer.is_special(id); });
  }
  return replace_invalid_utf8(tokenizer.decode(ids));
}

// Every entry by itself, on all threads. The first error is thrown when all have ended.
template <class In, class Out, class Convert>
std::vector<Out> convert_all(const std::vector<In>& in, std::int64_t threads, Convert convert) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<Out> out(in.size());
  std::mutex mutex;
  std::exception_ptr failure;
  ThreadPool pool(static_cast<int>(threads));
  pool.run(static_cast<std::int64_t>(in.size()), [&](std::int64_t i) {
    auto at = static_cast<std::size_t>(i);
    try {
      out[at] = convert(in[at]);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return out;
}

}  // namespace

int run_tokenize(CommandConfig& config, const FieldList&, Options& options) {
  const TokenizeOptions& wanted = config.tokenize;
  options.add_problems(wanted.problems());
  options.throw_problems();
  if (config.launch.process != 0) return kExitOk;  // one does it for all
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(wanted.tokenizer);
  Json result;
  if (!wanted.text.empty()) {
    result = encode(*tokenizer, wanted.text, wanted.add_special_tokens);
  } else if (wanted.decode) {
    result = convert_all<Ids, std::string>(
        read_ids(wanted.input), wanted.threads,
        [&](const Ids& ids) { return decode(*tokenizer, ids, wanted.skip_special_tokens); });
  } else {
    result = convert_all<std::string, Ids>(
        read_texts(wanted.input), wanted.threads, [&](const std::string& text) {
          return encode(*tokenizer, text, wanted.add_special_tokens);
        });
  }
  std::string text = result.dump() + "\n";
  write_result(wanted.output, text);
  return kExitOk;
}

}  // namespace bev
