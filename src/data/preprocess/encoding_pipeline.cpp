#include "data/preprocess/encoding_pipeline.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace bev {

namespace {

// Memory overhead of a record in addition to its text.
constexpr std::int64_t kRecordBytes = 256;

struct Job {
  EncodedBatch batch;
  std::int64_t bytes = 0;
  bool done = false;
  std::exception_ptr failure;  // ends the input
};

}  // namespace

struct EncodingPipeline::State {
  State(TextSource& from, std::span<const InputFile> source_files, const RecordEncoder& by,
        const PipelineLimits& bounds)
      : source(from), files(source_files), encoder(by), limits(bounds) {}
  ~State();

  void read_all();
  bool fill(Job& job);
  bool add(std::shared_ptr<Job> job);
  void work();
  void encode(Job& job) const;

  TextSource& source;
  std::span<const InputFile> files;
  const RecordEncoder& encoder;
  PipelineLimits limits;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> in_order;  // read but not yet returned by next()
  std::deque<std::shared_ptr<Job>> waiting;   // not yet taken by a worker
  std::int64_t under_way_bytes = 0;
  bool ended = false;  // the source is exhausted
  bool closing = false;
  std::vector<std::thread> threads;
};

EncodingPipeline::State::~State() {
  {
    std::lock_guard lock(mutex);
    closing = true;
    changed.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns false at the end of the source.
bool EncodingPipeline::State::fill(Job& job) {
  Record record;
  while (job.bytes < limits.batch_bytes) {
    if (!source.next(record)) return false;
    job.bytes += static_cast<std::int64_t>(record.text.size()) + kRecordBytes;
    job.batch.records.push_back(std::move(record));
    job.batch.position = source.position();
  }
  return true;
}

// Blocks while too much is in flight. Returns false if the pipeline is closing.
bool EncodingPipeline::State::add(std::shared_ptr<Job> job) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] {
    return closing || in_order.empty() || under_way_bytes + job->bytes <= limits.under_way_bytes;
  });
  under_way_bytes += job->bytes;
  in_order.push_back(job);
  waiting.push_back(std::move(job));
  changed.notify_all();
  return !closing;
}

void EncodingPipeline::State::read_all() {
  for (bool more = true; more;) {
    auto job = std::make_shared<Job>();
    try {
      more = fill(*job);
    } catch (...) {
      job->failure = std::current_exception();
      more = false;
    }
    if (!add(std::move(job))) more = false;
  }
  std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

void EncodingPipeline::State::encode(Job& job) const {
  for (Record& record : job.batch.records) {
    job.batch.encoded.push_back(encoder.encode(record, files[record.file].format));
    record.text = std::string();
  }
}

void EncodingPipeline::State::work() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return closing || ended || !waiting.empty(); });
    if (closing || waiting.empty()) return;
    std::shared_ptr<Job> job = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      encode(*job);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      job->failure = failure;
      job->batch.records.resize(job->batch.encoded.size());
    }
    job->done = true;
    changed.notify_all();
  }
}

EncodingPipeline::EncodingPipeline(TextSource& source, std::span<const InputFile> files,
                                   const RecordEncoder& encoder, const PipelineLimits& limits)
    : state_(std::make_unique<State>(source, files, encoder, limits)) {
  state_->threads.emplace_back([state = state_.get()] { state->read_all(); });
  for (std::int64_t i = 0; i < limits.workers; ++i) {
    state_->threads.emplace_back([state = state_.get()] { state->work(); });
  }
}

EncodingPipeline::~EncodingPipeline() = default;

std::optional<EncodedBatch> EncodingPipeline::next() {
  std::unique_lock lock(state_->mutex);
  std::deque<std::shared_ptr<Job>>& in_order = state_->in_order;
  state_->changed.wait(lock,
                       [&] { return in_order.empty() ? state_->ended : in_order.front()->done; });
  if (in_order.empty()) return std::nullopt;
  std::shared_ptr<Job> job = std::move(in_order.front());
  in_order.pop_front();
  if (job->failure && !job->batch.encoded.empty()) {
    // First return what was read and encoded before the failure.
    in_order.push_front(std::make_shared<Job>(Job{{}, 0, true, job->failure}));
    job->failure = nullptr;
  }
  state_->under_way_bytes -= job->bytes;
  state_->changed.notify_all();
  if (job->failure) std::rethrow_exception(job->failure);
  return std::move(job->batch);
}

}  // namespace bev
