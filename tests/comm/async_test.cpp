// Random programs of asynchronous operations over overlapping groups, waited for in random order,
// compared with a plain reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "comm/world.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Random = std::mt19937;

int draw(Random& random, int below) {
  return static_cast<int>(random() % static_cast<unsigned>(below));
}

enum class Kind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kMessage,
  kBarrier
};

// One operation of the program, which all ranks know.
struct Step {
  Kind kind{};
  std::vector<int> members;
  std::size_t group = 0;
  Reduction reduction = Reduction::kSum;
  int from = 0, to = 0, channel = 0;  // broadcast: from is the root
  bool in_place = false;
  std::vector<std::int64_t> counts;  // by member; all_to_all: by sender, then receiver
};

struct Program {
  int ranks;
  std::vector<std::vector<int>> groups;
  std::vector<Step> steps;
};

std::int64_t draw_count(Random& random) {
  // Mostly few, sometimes none, sometimes more than one slice.
  int size = draw(random, 40);
  return size == 0 ? 70000 + draw(random, 100) : size < 8 ? 0 : 1 + draw(random, 40);
}

Program make_program(unsigned seed) {
  Random random(seed);
  Program program;
  program.ranks = 2 + draw(random, 7);
  std::vector<int> all(static_cast<std::size_t>(program.ranks));
  std::iota(all.begin(), all.end(), 0);
  program.groups.push_back(all);
  for (int i = 0; i < 4; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    auto size = static_cast<std::ptrdiff_t>(2 + draw(random, program.ranks - 1));
    program.groups.emplace_back(all.begin(), all.begin() + size);
  }
  for (int i = 0; i < 30; ++i) {
    Step step;
    step.kind = static_cast<Kind>(draw(random, 7));
    step.group = static_cast<std::size_t>(draw(random, static_cast<int>(program.groups.size())));
    step.members = program.groups[step.group];
    auto size = static_cast<int>(step.members.size());
    step.reduction = draw(random, 2) == 0 ? Reduction::kSum : Reduction::kMax;
    step.from = draw(random, size);
    step.to = (step.from + 1 + draw(random, size - 1)) % size;
    step.channel = draw(random, 2);
    step.in_place = draw(random, 2) == 0;
    std::int64_t common = draw_count(random);
    bool uneven = step.kind == Kind::kAllGather || step.kind == Kind::kReduceScatter;
    int parts = step.kind == Kind::kAllToAll ? size * size : size;
    for (int p = 0; p < parts; ++p) {
      step.counts.push_back(parts > size || uneven ? draw_count(random) : common);
    }
    program.steps.push_back(std::move(step));
  }
  return program;
}

// Fractions, so that the order of a sum shows in its bits; small enough for a sum in 8 bits.
template <class T>
T value(std::size_t step, int member, std::int64_t i) {
  auto whole = (static_cast<std::int64_t>(step) * 7 + member * 5 + i * 3) % 17;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(whole);
  if constexpr (!std::is_integral_v<T>) return T(static_cast<float>(whole) / 3.0f);
}

template <class T>
std::vector<T> values(std::size_t step, int member, std::int64_t begin, std::int64_t end) {
  std::vector<T> list;
  for (std::int64_t i = begin; i < end; ++i) list.push_back(value<T>(step, member, i));
  return list;
}

template <class T>
std::vector<T> reduced(const Step& step, std::size_t number, std::int64_t begin, std::int64_t end) {
  using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
  Reduction reduction = step.kind == Kind::kReduceScatter ? Reduction::kSum : step.reduction;
  std::vector<T> list;
  for (std::int64_t i = begin; i < end; ++i) {
    auto sum = static_cast<Sum>(value<T>(number, 0, i));
    for (int m = 1; m < static_cast<int>(step.members.size()); ++m) {
      auto next = static_cast<Sum>(value<T>(number, m, i));
      sum = reduction == Reduction::kSum ? static_cast<Sum>(sum + next) : std::max(sum, next);
    }
    list.push_back(static_cast<T>(sum));
  }
  return list;
}

template <class T>
void append(std::vector<T>& list, const std::vector<T>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

// A posted operation with its memory and the expected content.
template <class T>
struct Flight {
  std::vector<T> in, out, expected_in, expected_out;
  Work work;  // destroyed before the memory

  static View view(std::vector<T>& data) {
    return part(data, 0, static_cast<std::int64_t>(data.size()));
  }
  static View part(std::vector<T>& data, std::int64_t begin, std::int64_t count) {
    return {data.data() + begin, DtypeOf<T>::value, {count}};
  }
  void finish(std::size_t number) {
    work.wait();
    ASSERT_TRUE(in == expected_in) << "step " << number;
    ASSERT_TRUE(out == expected_out) << "step " << number;
  }
};

std::int64_t sum_of(const std::vector<std::int64_t>& counts, std::size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(end),
                         std::int64_t{0});
}

template <class T>
void post_gather(Flight<T>& flight, const Step& step, std::size_t number, Group& group) {
  auto me = static_cast<std::size_t>(group.rank());
  std::int64_t begin = sum_of(step.counts, me), count = step.counts[me];
  flight.in = flight.expected_in = values<T>(number, group.rank(), 0, count);
  for (int m = 0; m < group.size(); ++m) {
    append(flight.expected_out, values<T>(number, m, 0, step.counts[static_cast<std::size_t>(m)]));
  }
  flight.out.resize(flight.expected_out.size());
  std::copy(flight.in.begin(), flight.in.end(), flight.out.begin() + begin);
  View in = step.in_place ? flight.part(flight.out, begin, count) : flight.view(flight.in);
  flight.work = group.all_gather(in, flight.view(flight.out), "gather");
}

template <class T>
void post_scatter(Flight<T>& flight, const Step& step, std::size_t number, Group& group) {
  auto me = static_cast<std::size_t>(group.rank());
  std::int64_t begin = sum_of(step.counts, me), count = step.counts[me];
  flight.in = values<T>(number, group.rank(), 0, sum_of(step.counts, step.counts.size()));
  flight.expected_in = flight.in;
  std::vector<T> sum = reduced<T>(step, number, begin, begin + count);
  if (step.in_place) {
    std::copy(sum.begin(), sum.end(), flight.expected_in.begin() + begin);
  } else {
    flight.out.resize(sum.size());
    flight.expected_out = sum;
  }
  View out = step.in_place ? flight.part(flight.in, begin, count) : flight.view(flight.out);
  flight.work = group.reduce_scatter(flight.view(flight.in), out, "scatter");
}

template <class T>
void post_exchange(Flight<T>& flight, const Step& step, std::size_t number, Group& group) {
  auto size = static_cast<std::size_t>(group.size()), me = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> send, receive;
  for (std::size_t m = 0; m < size; ++m) {
    send.push_back(step.counts[me * size + m]);
    receive.push_back(step.counts[m * size + me]);
  }
  flight.in = flight.expected_in = values<T>(number, group.rank(), 0, sum_of(send, size));
  for (std::size_t m = 0; m < size; ++m) {
    std::vector<std::int64_t> sent(
        step.counts.begin() + static_cast<std::ptrdiff_t>(m * size),
        step.counts.begin() + static_cast<std::ptrdiff_t>(m * size + size));
    std::int64_t begin = sum_of(sent, me);
    append(flight.expected_out, values<T>(number, static_cast<int>(m), begin, begin + sent[me]));
  }
  flight.out.resize(flight.expected_out.size());
  flight.work =
      group.all_to_all(flight.view(flight.in), send, flight.view(flight.out), receive, "exchange");
}

template <class T>
void post(Flight<T>& flight, const Step& step, std::size_t number, Group& group) {
  std::int64_t count = step.counts[0];
  flight.in = flight.expected_in = values<T>(number, group.rank(), 0, count);
  switch (step.kind) {
    case Kind::kAllReduce:
      flight.expected_in = reduced<T>(step, number, 0, count);
      flight.work = group.all_reduce(flight.view(flight.in), step.reduction, "reduce");
      return;
    case Kind::kBroadcast:
      flight.expected_in = values<T>(number, step.from, 0, count);
      flight.work = group.broadcast(flight.view(flight.in), step.from, "broadcast");
      return;
    case Kind::kMessage:
      if (group.rank() == step.from) {
        flight.work = group.send(flight.view(flight.in), step.to, step.channel, "message");
      } else if (group.rank() == step.to) {
        flight.expected_in = values<T>(number, step.from, 0, count);
        flight.work = group.receive(flight.view(flight.in), step.from, step.channel, "message");
      }
      return;
    case Kind::kAllGather:
      return post_gather(flight, step, number, group);
    case Kind::kReduceScatter:
      return post_scatter(flight, step, number, group);
    case Kind::kAllToAll:
      return post_exchange(flight, step, number, group);
    case Kind::kBarrier:
      return group.barrier("barrier");
  }
}

// Runs the rank's part of the program, with up to six operations pending. Before step `fails_at` it
// throws with operations pending.
template <class T>
void play(World& world, const Program& program, unsigned seed, std::size_t fails_at) {
  std::vector<std::unique_ptr<Group>> groups;
  for (const std::vector<int>& members : program.groups) {
    bool member = std::find(members.begin(), members.end(), world.rank()) != members.end();
    groups.push_back(world.make_group("group", member ? members : std::vector<int>{world.rank()}));
  }
  Random random(seed * 31 + static_cast<unsigned>(world.rank()));
  std::vector<std::pair<std::size_t, std::unique_ptr<Flight<T>>>> pending;
  auto wait_for_any = [&] {
    auto chosen = pending.begin() + draw(random, static_cast<int>(pending.size()));
    chosen->second->finish(chosen->first);
    pending.erase(chosen);
  };
  for (std::size_t number = 0; number < program.steps.size(); ++number) {
    BEV_CHECK(number != fails_at, ErrorKind::kNumeric, "the cause");
    const Step& step = program.steps[number];
    if (std::find(step.members.begin(), step.members.end(), world.rank()) == step.members.end()) {
      continue;
    }
    pending.emplace_back(number, std::make_unique<Flight<T>>());
    post(*pending.back().second, step, number, *groups[step.group]);
    while (!pending.empty() && (pending.size() > 6 || draw(random, 3) == 0)) wait_for_any();
  }
  while (!pending.empty()) wait_for_any();
}

constexpr std::size_t kNever = ~std::size_t{0};

template <class T>
class Async : public testing::Test {};
using Types = testing::Types<double, float, Bf16, F16, std::int64_t, std::int32_t, std::uint8_t>;
TYPED_TEST_SUITE(Async, Types);

TYPED_TEST(Async, RandomProgramsGiveWhatTheReferenceGives) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Program program = make_program(seed);
    run_thread_ranks(program.ranks, {60.0},
                     [&](World& world) { play<TypeParam>(world, program, seed, kNever); });
  }
}

// The failing rank's pending operations are cancelled while others run, wait and post.
TYPED_TEST(Async, ARankMayFailWithOperationsPending) {
  for (unsigned seed = 100; seed < 108; ++seed) {
    SCOPED_TRACE(seed);
    Program program = make_program(seed);
    int failing = static_cast<int>(seed) % program.ranks;
    expect_error(ErrorKind::kNumeric, {concat("rank ", failing, ": the cause")}, [&] {
      run_thread_ranks(program.ranks, {60.0}, [&](World& world) {
        play<TypeParam>(world, program, seed, world.rank() == failing ? seed % 29 : kNever);
      });
    });
  }
}

TEST(AsyncOrder, RanksMayWaitInOppositeOrders) {
  run_thread_ranks(2, {20.0}, [](World& world) {
    std::unique_ptr<Group> group = world.make_group("group", {0, 1});
    std::vector<float> a(1, 1.0f), b(1, 2.0f), got(1), other(1);
    Work first = group->all_reduce({a.data(), Dtype::kF32, {1}}, Reduction::kSum, "a");
    Work late = group->receive({got.data(), Dtype::kF32, {1}}, 1 - world.rank(), 0, "x");
    Work later = group->receive({other.data(), Dtype::kF32, {1}}, 1 - world.rank(), 0, "x");
    Work second = group->all_reduce({b.data(), Dtype::kF32, {1}}, Reduction::kSum, "b");
    if (world.rank() == 0) first.wait();
    second.wait();
    first.wait();
    EXPECT_EQ(a[0], 2.0f);
    EXPECT_EQ(b[0], 4.0f);
    group->send({a.data(), Dtype::kF32, {1}}, 1 - world.rank(), 0, "x").wait();
    group->send({b.data(), Dtype::kF32, {1}}, 1 - world.rank(), 0, "x").wait();
    later.wait();
    late.wait();
    EXPECT_EQ(got[0], 2.0f);
    EXPECT_EQ(other[0], 4.0f);
  });
}

// A posted operation finishes on the others while the poster does something else.
TEST(AsyncOrder, APosterNeedNotComeBack) {
  std::atomic<bool> finished = false;
  run_thread_ranks(2, {20.0}, [&](World& world) {
    std::unique_ptr<Group> group = world.make_group("group", {0, 1});
    std::vector<float> data(100000, 1.0f);
    Work work = group->all_reduce({data.data(), Dtype::kF32, {100000}}, Reduction::kSum, "x");
    if (world.rank() == 0) {
      while (!finished) std::this_thread::yield();
      work.wait();
    } else {
      work.wait();
      finished = true;
    }
    EXPECT_EQ(data, std::vector<float>(100000, 2.0f));
  });
}

}  // namespace
}  // namespace bev
