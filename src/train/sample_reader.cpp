#include "train/sample_reader.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"

namespace bev {

// Tickets number the micro-batches. Tickets in [taken, claimed) are being read or are ready in
// their slots.
struct SampleReader::Threads {
  struct Slot {
    bool ready = false;
    std::vector<TokenSample> samples;
    std::exception_ptr error;
  };

  explicit Threads(std::size_t capacity) : slots(capacity) {}

  Slot& slot(std::size_t ticket) { return slots[ticket % slots.size()]; }
  void run(SampleReader& reader);
  std::vector<TokenSample> take();

  std::mutex mutex;
  std::condition_variable room, arrival;
  std::vector<Slot> slots;
  std::size_t claimed = 0, taken = 0;
  bool stopping = false;
  std::vector<std::thread> workers;
};

// Reading a micro-batch beyond the end of the run may fail; its error is never rethrown, as it is
// not taken.
void SampleReader::Threads::run(SampleReader& reader) {
  std::unique_lock lock(mutex);
  while (true) {
    room.wait(lock, [&] { return stopping || claimed - taken < slots.size(); });
    if (stopping) return;
    std::size_t ticket = claimed++;
    Slot filled;
    try {
      ReadPosition place = reader.place_;
      reader.place_ = reader.following(place);
      lock.unlock();
      filled.samples = reader.read(place);
    } catch (...) {
      filled.error = std::current_exception();
    }
    if (!lock.owns_lock()) lock.lock();
    filled.ready = true;
    slot(ticket) = std::move(filled);
    arrival.notify_all();
  }
}

std::vector<TokenSample> SampleReader::Threads::take() {
  std::unique_lock lock(mutex);
  Slot& first = slot(taken);
  arrival.wait(lock, [&] { return first.ready; });
  if (first.error) std::rethrow_exception(first.error);
  std::vector<TokenSample> samples = std::move(first.samples);
  first = {};
  ++taken;
  room.notify_one();
  return samples;
}

SampleReader::SampleReader(SampleSource source, std::int64_t consumed_samples,
                           const ReadAhead& ahead)
    : source_(std::move(source)), place_{consumed_samples, 0} {
  if (ahead.threads == 0) return;
  BEV_CHECK(ahead.threads > 0 && ahead.factor > 0, ErrorKind::kInternal,
            "sample reader: ", ahead.threads, " threads, ", ahead.factor,
            " micro-batches for each");
  threads_ = std::make_unique<Threads>(static_cast<std::size_t>(ahead.threads * ahead.factor));
  for (std::int64_t i = 0; i < ahead.threads; ++i) {
    threads_->workers.emplace_back([this] { threads_->run(*this); });
  }
}

SampleReader::~SampleReader() {
  if (!threads_) return;
  {
    std::lock_guard lock(threads_->mutex);
    threads_->stopping = true;
  }
  threads_->room.notify_all();
  for (std::thread& worker : threads_->workers) worker.join();
}

std::vector<TokenSample> SampleReader::next() {
  if (threads_) return threads_->take();
  std::vector<TokenSample> samples = read(place_);
  place_ = following(place_);
  return samples;
}

SampleReader::ReadPosition SampleReader::following(const ReadPosition& place) const {
  BatchSize size = source_.batches.at(place.consumed_samples);
  if (place.micro_batch + 1 < size.micro_batches) {
    return {place.consumed_samples, place.micro_batch + 1};
  }
  return {place.consumed_samples + size.running, 0};
}

std::vector<std::int64_t> SampleReader::indices_of(std::int64_t consumed_samples,
                                                   std::int64_t block) const {
  std::int64_t size = source_.batches.micro_batch_size();
  std::vector<std::int64_t> indices(static_cast<std::size_t>(size));
  std::int64_t before = block / source_.ranks * size * source_.ranks;
  source_.order->micro_batch(consumed_samples + before, block % source_.ranks, indices);
  return indices;
}

std::vector<TokenSample> SampleReader::read(const ReadPosition& place) const {
  std::int64_t block = place.micro_batch * source_.ranks + source_.rank;
  std::vector<TokenSample> samples;
  for (std::int64_t index : indices_of(place.consumed_samples, block)) {
    samples.push_back(source_.data->sample(index));
  }
  if (!source_.data->joins()) return samples;
  std::int64_t blocks =
      source_.batches.at(place.consumed_samples).running / source_.batches.micro_batch_size();
  std::int64_t other = block > 0 ? block - 1 : blocks - 1;
  TokenSample before = source_.data->sample(indices_of(place.consumed_samples, other).back());
  for (TokenSample& sample : samples) {
    TokenSample plain = sample;
    source_.data->join(sample, before);
    before = std::move(plain);
  }
  return samples;
}

}  // namespace bev
