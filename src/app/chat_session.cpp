#include "app/chat_session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "app/interrupt.h"
#include "app/prompts.h"
#include "base/error.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"
#include "infer/text_stream.h"
#include "models/config.h"

namespace bev {

namespace {

using Ids = std::vector<std::int32_t>;

constexpr const char* kHelp =
    "/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends an answer";

// Lines of standard input, interruptible.
class LineReader {
 public:
  enum class Event : std::uint8_t { kLine, kEnd, kInterrupt, kIdle };

  explicit LineReader(Interrupt& interrupt) : interrupt_(interrupt) {}

  // kIdle after `timeout_ms` without input.
  Event next(std::string& line, int timeout_ms) {
    while (!take_line(line)) {
      if (ended_) return Event::kEnd;
      pollfd watched[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_.descriptor(), POLLIN, 0}};
      int ready = ::poll(watched, 2, timeout_ms);
      if (interrupt_.pending()) {
        interrupt_.clear();
        buffer_.clear();  // the terminal has dropped the rest of the line
        return Event::kInterrupt;
      }
      if (ready == 0) return Event::kIdle;
      if (ready > 0) read_more();
    }
    return Event::kLine;
  }

 private:
  bool take_line(std::string& line) {
    std::size_t end = buffer_.find('\n');
    if (end == std::string::npos && !(ended_ && !buffer_.empty())) return false;
    line = buffer_.substr(0, end);
    buffer_.erase(0, end == std::string::npos ? end : end + 1);
    return true;
  }

  void read_more() {
    std::array<char, 4096> part;
    ssize_t got = ::read(STDIN_FILENO, part.data(), part.size());
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) ended_ = true;
    if (got > 0) buffer_.append(part.data(), static_cast<std::size_t>(got));
  }

  Interrupt& interrupt_;
  std::string buffer_;
  bool ended_ = false;
};

// Writes an answer as it comes.
class AnswerOutput : public RequestSink {
 public:
  AnswerOutput(const ChatSetup& setup, const Ids& prompt, const Interrupt* interrupt)
      : setup_(setup), interrupt_(interrupt), text_(setup.tokenizer, prompt) {}

  void on_token(const TokenEvent& event) override {
    if (!interrupt_ || !shown(event.token)) return;
    write(text_.add(event.token));
  }
  bool wants_stop() const { return interrupt_ && interrupt_->pending(); }

  // The whole answer.
  std::string finish() {
    write(text_.finish());
    write_stdout("\n");
    return std::move(answer_);
  }

 private:
  bool shown(std::int32_t token) const {
    bool ends =
        std::ranges::find(setup_.request.end_tokens, token) != setup_.request.end_tokens.end();
    if (ends && !setup_.request.ignore_end) return false;
    return setup_.show_special_tokens || !setup_.tokenizer.is_special(token);
  }

  void write(const std::string& part) {
    answer_ += part;
    write_stdout(part);
  }

  const ChatSetup& setup_;
  const Interrupt* interrupt_;  // nullptr on ranks that write nothing
  TextStream text_;
  std::string answer_;
};

// What rank 0 tells the others.
enum class Turn : std::uint8_t { kPrompt, kIdle, kLeave };

// The user's side of the conversation, on rank 0.
class Session {
 public:
  explicit Session(const ChatSetup& setup)
      : setup_(setup), lines_(setup.interrupt), terminal_(::isatty(STDIN_FILENO) == 1) {
    clear();
    setup.interrupt.listen();
    if (terminal_) log_info(kHelp);
  }

  // The ids of the next prompt if it is there within a minute, so that other ranks do not take the
  // silence for a hang.
  Turn next(Ids& prompt) {
    constexpr int kWaitMs = 60'000;
    while (true) {
      if (!std::exchange(asked_, true)) ask();
      std::string line;
      LineReader::Event event = lines_.next(line, kWaitMs);
      if (event == LineReader::Event::kIdle) return Turn::kIdle;
      asked_ = false;
      if (event == LineReader::Event::kInterrupt) {
        log_info(concat("\n", kHelp));
        continue;
      }
      if (event == LineReader::Event::kEnd) {
        if (terminal_) log_info("");
        return Turn::kLeave;
      }
      std::string_view said = trim(line);
      if (said == "/exit" || said == "/quit") return Turn::kLeave;
      if (said == "/help") {
        log_info(kHelp);
      } else if (said == "/clear") {
        clear();
        log_info("the conversation is forgotten");
      } else if (!said.empty() && add_question(std::string(said), prompt)) {
        return Turn::kPrompt;
      }
    }
  }

  void add_answer(std::string answer) {
    setup_.interrupt.clear();
    messages_.push_back(chat_message("assistant", std::move(answer)));
  }

 private:
  void ask() const {
    if (!terminal_) return;
    constexpr std::string_view kPrompt = "> ";
    [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, kPrompt.data(), kPrompt.size());
  }

  void clear() { messages_ = first_messages(setup_.system_prompt); }

  // False with a message if the model cannot take it; the conversation is then as before.
  bool add_question(std::string said, Ids& prompt) {
    jinja::List messages = messages_;
    messages.push_back(chat_message("user", std::move(said)));
    try {
      ChatOptions options;
      options.add_generation_prompt = true;
      prompt = setup_.tokenizer.encode(
          setup_.chat_template.render(jinja::Value::list(messages), options).text);
      auto length = static_cast<std::int64_t>(prompt.size());
      BEV_CHECK(answer_tokens(setup_.model, length, setup_.request.max_new_tokens,
                              setup_.length_given) > 0,
                ErrorKind::kInput, "the conversation has ", length, " tokens, and the model ",
                setup_.model.max_position_embeddings, " positions; /clear forgets it");
      Request none;
      none.prompt = prompt;
      none.max_new_tokens = 0;
      check_request(setup_.model, none, "the conversation");
    } catch (const Error& error) {
      log_error(error.what());
      return false;
    }
    messages_ = std::move(messages);
    return true;
  }

  const ChatSetup& setup_;
  LineReader lines_;
  bool terminal_;
  bool asked_ = false;
  jinja::List messages_;
};

// Rank 0's turn and prompt, to all.
Turn share(Group& world, Turn turn, Ids& prompt) {
  if (world.size() == 1) return turn;
  std::array<std::int64_t, 2> head = {static_cast<std::int64_t>(turn),
                                      static_cast<std::int64_t>(prompt.size())};
  world.broadcast(View{head.data(), Dtype::kI64, {2}}, 0, "turn").wait();
  turn = static_cast<Turn>(head[0]);
  if (turn != Turn::kPrompt) return turn;
  prompt.resize(static_cast<std::size_t>(head[1]));
  world.broadcast(View{prompt.data(), Dtype::kI32, {head[1]}}, 0, "prompt").wait();
  return turn;
}

}  // namespace

std::int64_t answer_tokens(const ModelConfig& model, std::int64_t prompt_tokens,
                           std::int64_t wanted, bool given) {
  constexpr std::int64_t kMost = 1024;
  const std::int64_t most = model.longest_sequence();
  if (given && most == 0) return wanted;
  return std::min(given ? wanted : kMost,
                  (most > 0 ? most : model.max_position_embeddings) - prompt_tokens);
}

void hold_conversation(InferenceEngine& engine, Group& world, const ChatSetup& setup) {
  std::optional<Session> session;
  if (world.rank() == 0) session.emplace(setup);
  while (true) {
    Request request = setup.request;
    Turn turn = share(world, session ? session->next(request.prompt) : Turn::kIdle, request.prompt);
    if (turn == Turn::kLeave) return;
    if (turn == Turn::kIdle) continue;
    request.max_new_tokens = answer_tokens(setup.model, std::ssize(request.prompt),
                                           setup.request.max_new_tokens, setup.length_given);
    AnswerOutput output(setup, request.prompt, session ? &setup.interrupt : nullptr);
    RequestId id = engine.submit(std::move(request));
    while (engine.step(output)) {
      if (output.wants_stop()) engine.cancel(id);
    }
    if (session) session->add_answer(output.finish());
  }
}

}  // namespace bev
