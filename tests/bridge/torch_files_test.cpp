// Pickles and archives of torch.save. What megatron-core wrote is read by megatron_program_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "bridge/torch/torch_archive.h"
#include "bridge/torch/torch_writer.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Protocol 2 unless the body says else.
std::string pickled(const std::string& body) { return "\x80\x02"s + body + "."; }

TEST(Pickles, HaveTheValuesThatPythonWrites) {
  // {'a': 1, 'b': [True, None, -2, 2.5], 'c': (b'xy', 2**70)}
  std::string bytes =
      "\x80\x04}(\x8c\x01"
      "aK\x01\x8c\x01"
      "b](\x88NJ\xfe\xff\xff\xffG@\x04"s +
      "\0\0\0\0\0\0e\x8c\x01"
      "cC\x02xy\x8a\x09\0\0\0\0\0\0\0\0\x40\x86u."s;
  Pickle pickle(bytes_of(bytes), "p");
  EXPECT_EQ(pickle.root().find("a")->as_int(), 1);
  std::span<const PickleValue* const> list = pickle.root().find("b")->elements();
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0]->as_int(), 1);
  EXPECT_TRUE(list[1]->is(PickleKind::kNone));
  EXPECT_EQ(list[2]->as_int(), -2);
  EXPECT_EQ(list[3]->as_number(), 2.5);
  std::span<const PickleValue* const> pair = pickle.root().find("c")->elements();
  EXPECT_EQ(pair[0]->text, "xy");
  EXPECT_EQ(pair[1]->as_number(), std::exp2(70));
  EXPECT_EQ(pickle.root().find("d"), nullptr);
}

TEST(Pickles, MakeObjectsWithoutCallingAnything) {
  // Namespace(x=3) as copyreg makes it, and an OrderedDict with one key.
  std::string bytes = pickled("cargparse\nNamespace\n)\x81}X\x01\0\0\0xK\x03sb"s +
                              "ccollections\nOrderedDict\n)RX\x01\0\0\0yK\x04s\x86"s);
  Pickle pickle(bytes_of(bytes), "p");
  std::span<const PickleValue* const> both = pickle.root().elements();
  EXPECT_TRUE(both[0]->made_by("argparse.Namespace"));
  EXPECT_EQ(both[0]->find("x")->as_int(), 3);
  EXPECT_EQ(both[1]->find("y")->as_int(), 4);
}

TEST(Pickles, OfOtherTypesAreRefusedByName) {
  for (const char* name : {"os\nsystem", "builtins\neval", "builtins\ngetattr", "posix\nsystem",
                           "subprocess\nPopen", "torch\nload", "megatronx.core\nf"}) {
    std::string bytes = pickled(concat("c", name, "\nX\x04", std::string(3, '\0'), "true\x85R"));
    std::string shown(name);
    shown.replace(shown.find('\n'), 1, ".");
    expect_error(ErrorKind::kInput, {shown}, [&] { Pickle(bytes_of(bytes), "p"); });
  }
}

TEST(Pickles, ThatAreDamagedAreRefused) {
  const std::string bad[] = {"",
                             "\x80",
                             "\x80\x02",
                             pickled(""),
                             pickled("NN"),
                             pickled("("),
                             pickled("t"),
                             pickled("h\x05"),
                             pickled("X\xff\xff\xff\xff"
                                     "a"),
                             pickled("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx"),
                             pickled("}K\x01K\x02K\x03"
                                     "u"),
                             pickled("K\x01K\x02s"),
                             pickled("Na"),
                             pickled("NNb"),
                             pickled("NNR"),
                             pickled("i"),
                             pickled("\x82\x01"),
                             "\x80\x09N."};
  for (const std::string& bytes : bad) {
    EXPECT_THROW(Pickle(bytes_of(bytes), "p"), Error) << bytes;
  }
}

TEST(Pickles, MayHaveCyclesAndGoDeep) {
  Pickle cycle(bytes_of(pickled("]q\x01h\x01"
                                "a")),
               "p");  // a list in itself
  EXPECT_EQ(cycle.root().elements()[0], &cycle.root());
  EXPECT_FALSE(pickle_text(cycle.root()).empty());
  std::string deep(200'000, ']');
  deep += std::string(199'999, 'a');
  EXPECT_NO_THROW(Pickle(bytes_of(pickled(deep)), "p"));
  // Each tuple twice in the next one: 2^60 paths through a few values.
  std::string doubling = "N";
  for (int i = 0; i < 60; ++i) doubling += "2\x86";
  Pickle many(bytes_of(pickled(doubling)), "p");
  EXPECT_LT(pickle_text(many.root()).size(), 10'000u);
}

// An archive of these entries.
std::string archive(const std::vector<std::pair<std::string, std::string>>& entries) {
  ZipWriter writer;
  std::string out;
  for (const auto& [name, content] : entries) {
    out += writer.begin_entry(name, content.size(), crc32_of(bytes_of(content)));
    EXPECT_EQ(out.size() % 64, 0u);
    out += content;
  }
  return out + writer.end();
}

// A tensor of `type` [2, 2] whose storage "0" has these strides and offset.
std::string tensor_pickle(const std::string& type, char offset, const std::string& strides) {
  return pickled("ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"s + type +
                 "\nX\x01\0\0\0"
                 "0X\x03\0\0\0cpuK\x04tQK"s +
                 offset + "K\x02K\x02\x86" + strides +
                 "\x86\x89"
                 "ccollections\nOrderedDict\n)RtR"s);
}

TEST(TorchArchives, HaveTheirTensors) {
  std::string data(16, '\0');
  const float values[] = {1, 2, 3, 4};
  std::memcpy(data.data(), values, sizeof values);
  std::string file = archive({{"a/data.pkl", tensor_pickle("FloatStorage", 0, "K\x02K\x01")},
                              {"a/byteorder", "little"},
                              {"a/data/0", data}});
  TorchArchive torch(bytes_of(file), "t");
  ASSERT_TRUE(TorchArchive::is_tensor(torch.root()));
  TorchTensor tensor = torch.tensor(torch.root(), "x");
  EXPECT_EQ(tensor.dtype, Dtype::kF32);
  EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(std::memcmp(tensor.bytes.data(), values, sizeof values), 0);
}

TEST(TorchArchives, ThatDoNotFitAreRefused) {
  std::string data(16, '\0'), good = tensor_pickle("FloatStorage", 0, "K\x02K\x01");
  auto refuse = [&](const std::string& file, const std::string& why) {
    expect_error(ErrorKind::kInput, {why}, [&] {
      TorchArchive torch(bytes_of(file), "t");
      torch.tensor(torch.root(), "x");
    });
  };
  refuse(archive({{"a/data.pkl", good}}), "missing");
  refuse(archive({{"a/data.pkl", good}, {"a/data/0", data.substr(4)}}), "truncated");
  refuse(
      archive({{"a/data.pkl", tensor_pickle("FloatStorage", 1, "K\x02K\x01")}, {"a/data/0", data}}),
      "truncated");
  refuse(
      archive({{"a/data.pkl", tensor_pickle("FloatStorage", 0, "K\x01K\x02")}, {"a/data/0", data}}),
      "strided");
  refuse(
      archive({{"a/data.pkl", tensor_pickle("BoolStorage", 0, "K\x02K\x01")}, {"a/data/0", data}}),
      "BoolStorage");
  refuse(archive({{"a/data.pkl", pickled("N")}}), "is no tensor");
  refuse(archive({{"a/other", "x"}}), "has no data.pkl");
  refuse(archive({{"a/data.pkl", good}, {"a/byteorder", "big"}}), "big-endian");
  std::string whole = archive({{"a/data.pkl", good}, {"a/data/0", data}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    refuse(whole.substr(0, size), "t: ");
  }
  std::string changed = whole;
  changed[whole.find("_rebuild")] = '?';
  refuse(changed, "checksum");
}

// Every kind of value, and texts that come again as references.
TEST(PickleWriters, WriteWhatIsRead) {
  PickleWriter out;
  out.begin_dict();
  out.text("numbers");
  out.integers(std::vector<std::int64_t>{0, 255, 256, -1, 1 << 20, std::int64_t{1} << 40});
  out.text("values");
  out.begin_list();
  out.none();
  out.boolean(true);
  out.number(-2.5);
  out.text("numbers");
  out.global("torch", "float32");
  out.end_list();
  out.text("run");
  out.begin_object("argparse", "Namespace");
  out.begin_dict();
  out.text("lr");
  out.number(0.125);
  out.end_dict();
  out.end_object();
  for (int i = 0; i < 300; ++i) {  // more than a byte of references
    out.text(concat("key ", i));
    out.text(concat("key ", i));
  }
  out.end_dict();
  std::string bytes = out.take();
  Pickle pickle(bytes_of(bytes), "p");
  std::vector<std::int64_t> numbers;
  for (const PickleValue* item : pickle.root().find("numbers")->elements()) {
    numbers.push_back(*item->as_int());
  }
  EXPECT_EQ(numbers, (std::vector<std::int64_t>{0, 255, 256, -1, 1 << 20, std::int64_t{1} << 40}));
  EXPECT_EQ(pickle_text(*pickle.root().find("values")), "[None, True, -2.5, numbers, float32]");
  EXPECT_EQ(pickle.root().find("run")->find("lr")->as_number(), 0.125);
  EXPECT_EQ(pickle.root().find("key 299")->as_text(), "key 299");
}

TEST(ArchiveWriters, WriteTensorsThatAreRead) {
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  std::span<const std::byte> elements = std::as_bytes(std::span(numbers));
  ArchiveFrame frame = tensor_archive(Dtype::kF32, {2, 3}, elements);
  std::string bytes = frame.before;
  bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size());
  bytes += frame.after;
  TorchArchive archive(bytes_of(bytes), "a");
  TorchTensor tensor = archive.tensor(archive.root(), "w");
  EXPECT_EQ(tensor.dtype, Dtype::kF32);
  EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(std::ranges::equal(tensor.bytes, elements));
  EXPECT_EQ((elements.size() + frame.before.size()) % 4, 0u);
  for (const auto& [name, entry] : archive.zip().entries()) EXPECT_TRUE(intact(entry)) << name;
}

}  // namespace
}  // namespace bev
