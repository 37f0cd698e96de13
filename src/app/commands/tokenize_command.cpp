// tokenize: converts texts and conversations to token ids, and ids back to text.
#include <algorithm>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/output.h"
#include "base/thread_pool.h"
#include "chat/chat_template.h"
#include "chat/jinja/value_text.h"
#include "infer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct TokenizeOptions {
  std::string tokenizer;
  TiktokenOptions tiktoken;
  std::string text;
  std::string input;
  std::string output;
  std::string chat;  // a JSON file with conversations
  std::string chat_template;
  std::string tools;
  std::string documents;
  std::string template_kwargs;
  bool add_generation_prompt = false;
  bool decode = false;
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
  std::int64_t threads = 0;  // 0: all cores

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void TokenizeOptions::fields(FieldList& list) {
  list.section("tokenize");
  list.add("tokenizer", tokenizer,
           "tokenizer.json, tokenizer.model, vocab.txt, a rank file (FILE:cl100k_base) or a folder "
           "with one of them; byte; null:SIZE");
  tiktoken.fields(list);
  list.add("text", text, "text to encode; its ids go to stdout");
  list.add("input", input, "JSON array of texts; with --decode of arrays of ids");
  list.add("output", output, "JSON file for the ids, or for the texts").defaults_to("stdout");
  list.add("chat", chat,
           "JSON file with messages, a list of conversations or {\"messages\": [...]}: their text, "
           "ids and, where the template marks it, the assistant's tokens");
  list.add("chat-template", chat_template,
           "file with a chat template, or the name of one of several")
      .defaults_to("the tokenizer's");
  list.add("add-generation-prompt", add_generation_prompt, "end where the assistant is to speak");
  list.add("tools", tools, "JSON file with the list of tools for the template");
  list.add("documents", documents, "JSON file with the list of documents for the template");
  list.add("template-kwargs", template_kwargs,
           "JSON object with more variables of the template, as in {\"enable_thinking\": false}");
  list.add("decode", decode, "from ids to text");
  list.add("add-special-tokens", add_special_tokens,
           "add what the model expects around a text, such as <s> or [CLS]");
  list.add("skip-special-tokens", skip_special_tokens, "leave special tokens out of decoded text");
  list.add("threads", threads, "threads; 0: all cores").min(0).limit(1024);
}

std::vector<std::string> TokenizeOptions::problems() const {
  std::vector<std::string> out;
  need(tokenizer, "--tokenizer", "a file, a folder or a name", out);
  int given = !text.empty() + !input.empty() + !chat.empty();
  if (given == 0) out.push_back("--text: is missing; give it, --input or --chat");
  if (given > 1) out.push_back("--text: only one of --text, --input and --chat can be given");
  bool for_chat = !chat_template.empty() || add_generation_prompt || !tools.empty() ||
                  !documents.empty() || !template_kwargs.empty();
  if (for_chat && chat.empty()) {
    out.push_back(
        "--chat: is missing; the template's flags (--chat-template, --add-generation-prompt, "
        "--tools, --documents, --template-kwargs) are for it");
  }
  if (decode && !chat.empty()) out.push_back("--decode: excludes --chat");
  if (add_special_tokens && !chat.empty()) {
    out.push_back("--add-special-tokens: excludes --chat, whose template writes them");
  }
  if (decode && !text.empty()) out.push_back("--decode: needs --input with ids");
  if (decode && add_special_tokens) out.push_back("--add-special-tokens: excludes --decode");
  return out;
}

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

Json read_array(const std::string& path) {
  constexpr int kMaxDepth = 8;
  std::string text = read_file(path);
  BEV_CHECK(trim(text).starts_with('['), ErrorKind::kInput, path,
            ": not a JSON array; --input has texts as [\"..\", ..], or with --decode ids as "
            "[[..], ..]; preprocess reads other files");
  check_json(text, path, kMaxDepth);
  return Json::parse(text);
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

// Converts every entry independently, on all threads. Throws the first error after all have ended.
template <class In, class Out, class Convert>
std::vector<Out> convert_all(const std::vector<In>& in, std::int64_t threads, Convert convert) {
  if (threads == 0) threads = machine_threads();
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

jinja::Value read_value(const std::string& path) {
  return path.empty() ? jinja::Value() : jinja::parse_json(read_file(path), path);
}

// Reads a list of objects for the chat template.
jinja::Value read_objects(const std::string& path) {
  jinja::Value value = read_value(path);
  if (path.empty()) return value;
  const jinja::Sequence* list = value.sequence();
  BEV_CHECK(list && std::ranges::all_of(list->items, &jinja::Value::is_dict), ErrorKind::kInput,
            path, ": not a JSON array of objects");
  return value;
}

// Reads one conversation or several, each a list of messages or an object with "messages".
std::vector<jinja::Value> read_conversations(const std::string& path, bool& several) {
  jinja::Value value = read_value(path);
  auto messages_of = [&](const jinja::Value& entry) {
    const jinja::Value* inner = entry.dict() ? entry.dict()->find_name("messages") : nullptr;
    return inner ? *inner : entry;
  };
  value = messages_of(value);
  const jinja::Sequence* list = value.sequence();
  BEV_CHECK(list && !list->items.empty(), ErrorKind::kInput, path,
            ": not a JSON array of messages or conversations");
  several = messages_of(list->items[0]).is_sequence();
  if (!several) return {value};
  std::vector<jinja::Value> out;
  for (const jinja::Value& entry : list->items) out.push_back(messages_of(entry));
  return out;
}

nlohmann::ordered_json chat_json(const EncodedChat& chat, const ChatTemplate& chat_template) {
  return {{"text", chat.text},
          {"input_ids", chat.ids},
          {"assistant_masks", chat.assistant},
          {"mask_source", mask_source(chat_template)}};
}

std::string tokenize_chats(const TokenizeOptions& wanted, const Tokenizer& tokenizer) {
  ChatOptions options;
  options.tools = read_objects(wanted.tools);
  options.documents = read_objects(wanted.documents);
  options.add_generation_prompt = wanted.add_generation_prompt;
  if (!wanted.template_kwargs.empty()) {
    jinja::Value variables = jinja::parse_json(wanted.template_kwargs, "--template-kwargs");
    BEV_CHECK(variables.is_dict(), ErrorKind::kConfig, "--template-kwargs: not a JSON object");
    options.variables = *variables.dict();
  }
  auto chat_template =
      ChatTemplate::load(wanted.tokenizer, wanted.chat_template, !wanted.tools.empty());
  bool several = false;
  std::vector<jinja::Value> conversations = read_conversations(wanted.chat, several);
  auto chats = convert_all<jinja::Value, EncodedChat>(
      conversations, wanted.threads, [&](const jinja::Value& messages) {
        return encode_chat(chat_template, tokenizer, messages, options);
      });
  if (!several) return chat_json(chats[0], chat_template).dump() + "\n";
  auto out = nlohmann::ordered_json::array();
  for (const EncodedChat& chat : chats) out.push_back(chat_json(chat, chat_template));
  return out.dump() + "\n";
}

int run_tokenize(TokenizeOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  if (input.launch.process != 0) return kExitOk;  // one process does the work
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(wanted.tokenizer, wanted.tiktoken);
  if (!wanted.chat.empty()) {
    write_result(wanted.output, tokenize_chats(wanted, *tokenizer));
    return kExitOk;
  }
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

}  // namespace

const Command kTokenizeCommand = {
    .name = "tokenize",
    .summary = "text to token ids, and back",
    .examples =
        "bevatron tokenize --tokenizer DIR --text \"Once upon a time\"\n"
        "bevatron tokenize --tokenizer tokenizer.json --input texts.json --output ids.json\n"
        "bevatron tokenize --tokenizer cl100k_base.tiktoken --input ids.json --decode",
    .call = call_of<TokenizeOptions, run_tokenize>};

}  // namespace bev
