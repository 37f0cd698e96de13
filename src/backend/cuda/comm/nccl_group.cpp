// Collectives over NCCL on a side stream, checked by the hosts; optionally with sums in rank order.
#include "backend/cuda/comm/nccl_group.h"

#include <algorithm>

#include "backend/cuda/comm/nccl_communicator.h"
#include "backend/cuda/comm/nccl_lanes.h"
#include "backend/cuda/comm/nccl_rendezvous.h"
#include "backend/cuda/comm/peer_exchange.h"
#include "backend/cuda/runtime/stream_event.h"
#include "base/error.h"
#include "comm/placement.h"

namespace bev {

namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t before(const Counts& counts, int member) {
  std::int64_t sum = 0;
  for (int i = 0; i < member; ++i) sum += counts[static_cast<std::size_t>(i)];
  return sum;
}
bool all_equal(const Counts& counts) {
  return std::ranges::all_of(counts, [&](std::int64_t count) { return count == counts.front(); });
}
std::byte* element(void* data, Dtype dtype, std::int64_t index) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(index) * size_of(dtype);
}

class NcclGroup final : public Group, private DeviceWaitCheck {
 public:
  NcclGroup(Group& host, CudaQueue& queue, bool deterministic)
      : Group(host.name(), host.rank(), {host.members().begin(), host.members().end()}),
        hosts_(host),
        queue_(queue),
        // The sum of two values does not depend on their order.
        ordered_(deterministic && host.size() > 2),
        rendezvous_(host) {
    NcclId id{};
    if (rank() == 0) id = make_nccl_id();
    host.broadcast({&id, Dtype::kU8, {sizeof(id)}}, 0, "NCCL id").wait();
    comm_ = NcclCommunicator(id, size(), rank());
    queue_.add_wait_check(*this);
  }
  ~NcclGroup() override { queue_.remove_wait_check(*this); }

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    rendezvous_.announce({GroupOp::kAllReduce, std::string(label), data, data, reduction});
    return post([&](cudaStream_t stream) {
      if (ordered_ && reduction == Reduction::kSum) return sum_slices(data, stream);
      check_nccl(nccl_.all_reduce(data.data, data.data, count_of(data), nccl_dtype(data.dtype),
                                  nccl_reduction(reduction), comm_.get(), stream),
                 "all_reduce");
    });
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    Counts counts = rendezvous_.exchange({GroupOp::kAllGather, std::string(label), in, out}).in;
    return post([&](cudaStream_t stream) { gather(in.data, out, counts, stream); });
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    Counts counts =
        rendezvous_.exchange({GroupOp::kReduceScatter, std::string(label), in, out}).out;
    return post([&](cudaStream_t stream) {
      ordered_ ? sum_parts(in, counts, out.data, stream) : scatter(in, out, counts, stream);
    });
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    rendezvous_.announce(
        {GroupOp::kBroadcast, std::string(label), data, data, Reduction::kSum, root});
    return post([&](cudaStream_t stream) {
      check_nccl(nccl_.broadcast(data.data, data.data, count_of(data), nccl_dtype(data.dtype), root,
                                 comm_.get(), stream),
                 "broadcast");
    });
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    Counts send(send_counts.begin(), send_counts.end());
    Counts receive(receive_counts.begin(), receive_counts.end());
    rendezvous_.announce(
        {GroupOp::kAllToAll, std::string(label), in, out, Reduction::kSum, 0, send, receive});
    return post([&](cudaStream_t stream) { exchange(in, send, out.data, receive, stream); });
  }
  Work send(const View& data, int to, int channel, std::string_view label) override {
    return lanes().send(data, to, channel, label);
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    return lanes().receive(data, from, channel, label);
  }
  void barrier(std::string_view label) override { hosts_.barrier(label); }
  bool capturable() const override { return true; }

 private:
  static std::size_t count_of(const View& data) { return static_cast<std::size_t>(data.numel()); }

  // Enqueues call(stream) on the side stream after the compute stream's work so far; it overlaps
  // with what is computed next.
  template <class Call>
  Work post(const Call& call) {
    stream_.follow(std::make_shared<StreamEvent>(queue_.stream()));
    call(stream_.get());
    return follow_later(queue_, std::make_shared<StreamEvent>(stream_.get()));
  }
  // Wraps call(member) for all members in one NCCL group operation.
  template <class Call>
  void for_members(const char* what, const Call& call) {
    check_nccl(nccl_.group_start(), what);
    for (int i = 0; i < size(); ++i) call(i);
    check_nccl(nccl_.group_end(), what);
  }

  void gather(void* in, const View& out, const Counts& counts, cudaStream_t stream);
  void scatter(const View& in, const View& out, const Counts& counts, cudaStream_t stream);
  void exchange(const View& in, const Counts& send, void* out, const Counts& receive,
                cudaStream_t stream);
  // reduce_scatter and all_reduce with sums in rank order (deterministic).
  void sum_parts(const View& in, const Counts& counts, void* out, cudaStream_t stream);
  void sum_slices(const View& data, cudaStream_t stream);

  void before_wait() override { rendezvous_.finish(); }

  NcclLanes& lanes() {
    if (!lanes_) lanes_ = std::make_unique<NcclLanes>(hosts_, queue_);
    return *lanes_;
  }

  const NcclLibrary& nccl_ = nccl_library();
  Group& hosts_;
  CudaQueue& queue_;
  bool ordered_;
  NcclRendezvous rendezvous_;
  ScratchMemory scratch_;  // used on stream_
  NcclCommunicator comm_;
  SideStream stream_;
  std::unique_ptr<NcclLanes> lanes_;
};

void NcclGroup::gather(void* in, const View& out, const Counts& counts, cudaStream_t stream) {
  int dtype = nccl_dtype(out.dtype);
  if (all_equal(counts)) {
    check_nccl(nccl_.all_gather(in, out.data, static_cast<std::size_t>(counts.front()), dtype,
                                comm_.get(), stream),
               "all_gather");
    return;
  }
  for_members("all_gather", [&](int i) {
    auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(i)]);
    void* to = element(out.data, out.dtype, before(counts, i));
    check_nccl(nccl_.broadcast(i == rank() ? in : to, to, count, dtype, i, comm_.get(), stream),
               "all_gather");
  });
}

void NcclGroup::scatter(const View& in, const View& out, const Counts& counts,
                        cudaStream_t stream) {
  int dtype = nccl_dtype(in.dtype), sum = nccl_reduction(Reduction::kSum);
  if (all_equal(counts)) {
    check_nccl(
        nccl_.reduce_scatter(in.data, out.data, count_of(out), dtype, sum, comm_.get(), stream),
        "reduce_scatter");
    return;
  }
  for_members("reduce_scatter", [&](int i) {
    auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(i)]);
    check_nccl(nccl_.reduce(element(in.data, in.dtype, before(counts, i)), out.data, count, dtype,
                            sum, i, comm_.get(), stream),
               "reduce_scatter");
  });
}

void NcclGroup::exchange(const View& in, const Counts& send, void* out, const Counts& receive,
                         cudaStream_t stream) {
  int dtype = nccl_dtype(in.dtype);
  for_members("all_to_all", [&](int i) {
    auto at = static_cast<std::size_t>(i);
    check_nccl(nccl_.send(element(in.data, in.dtype, before(send, i)),
                          static_cast<std::size_t>(send[at]), dtype, i, comm_.get(), stream),
               "all_to_all");
    check_nccl(nccl_.receive(element(out, in.dtype, before(receive, i)),
                             static_cast<std::size_t>(receive[at]), dtype, i, comm_.get(), stream),
               "all_to_all");
  });
}

void NcclGroup::sum_parts(const View& in, const Counts& counts, void* out, cudaStream_t stream) {
  std::int64_t mine = counts[static_cast<std::size_t>(rank())];
  std::size_t bytes = static_cast<std::size_t>(mine * size()) * size_of(in.dtype);
  void* parts = scratch_.take(bytes, queue_.capturing());
  exchange(in, counts, parts, Counts(static_cast<std::size_t>(size()), mine), stream);
  CollectivePlan plan;
  plan.dtype = in.dtype;
  for (int i = 0; i < size(); ++i) {
    plan.addresses.push_back(element(parts, in.dtype, mine * i));
  }
  plan.addresses.push_back(static_cast<std::byte*>(out));
  if (mine > 0) plan.parts.push_back({mine, 0, static_cast<std::size_t>(size()), 1});
  cuda::run_exchange(stream, plan);
}

void NcclGroup::sum_slices(const View& data, cudaStream_t stream) {
  Counts counts;
  for (int i = 0; i < size(); ++i) counts.push_back(shard_range(data.numel(), size(), i).size());
  void* slice = element(data.data, data.dtype, before(counts, rank()));
  sum_parts(data, counts, slice, stream);
  gather(slice, data, counts, stream);
}

}  // namespace

std::unique_ptr<Group> make_nccl_group(Group& host, CudaQueue& queue, bool deterministic) {
  return std::make_unique<NcclGroup>(host, queue, deterministic);
}

}  // namespace bev
