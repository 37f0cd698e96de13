#include "bridge/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/divide.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

std::string file_of(std::string_view header, std::string_view data, std::uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data);
}
std::string file_of(std::string_view header, std::string_view data) {
  return file_of(header, data, header.size());
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The file's content must be refused with a message that names the file and holds `part`.
void expect_refused(const std::string& content, const std::string& part) {
  TempFolder folder;
  std::string path = folder.write("bad.safetensors", content);
  expect_error(ErrorKind::kInput, {"bad.safetensors", part}, [&] { SafetensorsFile file(path); });
}
void expect_header_refused(std::string_view header, std::string_view data,
                           const std::string& part) {
  expect_refused(file_of(header, data), part);
}

TEST(SafetensorsFile, ReadsNamesShapesAndBytes) {
  TempFolder folder;
  std::string path = folder.write(
      "a.safetensors",
      file_of(
          R"({"z":{"dtype":"F32","shape":[],"data_offsets":[6,10]},"__metadata__":{"format":"pt"},)"
          R"("a.b":{"shape":[1,3],"data_offsets":[0,6],"dtype":"BF16"},)"
          R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[6,6]}}   )",
          "abcdefWXYZ"));
  SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "a.b");
  EXPECT_EQ(file.tensors()[2].name, "z");
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));

  TensorBytes tensor = file.tensor("a.b");
  EXPECT_EQ(tensor.dtype, Dtype::kBf16);
  EXPECT_EQ(tensor.shape, (Shape{1, 3}));
  EXPECT_EQ(text_of(tensor.bytes), "abcdef");
  EXPECT_EQ(text_of(file.tensor("z").bytes), "WXYZ");
  EXPECT_EQ(file.tensor("z").shape.ndim(), 0);
  EXPECT_EQ(file.tensor("none").bytes.size(), 0u);
  EXPECT_EQ(file.find("a"), nullptr);
  expect_error(ErrorKind::kInput, {path, "no tensor 'zz'"}, [&] { file.tensor("zz"); });

  SafetensorsFile moved = std::move(file);
  EXPECT_EQ(text_of(moved.tensor("z").bytes), "WXYZ");
}

TEST(SafetensorsFile, ReadsEveryDtypeAndListsTheOthers) {
  TempFolder folder;
  for (auto [name, dtype, bytes] : {std::tuple{"F64", Dtype::kF64, 8},
                                    {"F32", Dtype::kF32, 4},
                                    {"BF16", Dtype::kBf16, 2},
                                    {"F16", Dtype::kF16, 2},
                                    {"I64", Dtype::kI64, 8},
                                    {"I32", Dtype::kI32, 4},
                                    {"U8", Dtype::kU8, 1}}) {
    std::string header =
        concat(R"({"t":{"dtype":")", name, R"(","shape":[1],"data_offsets":[0,)", bytes, "]}}");
    SafetensorsFile file(
        folder.write(name, file_of(header, std::string(static_cast<std::size_t>(bytes), 'x'))));
    EXPECT_EQ(file.tensor("t").dtype, dtype);
  }
  SafetensorsFile file(
      folder.write("others", file_of(R"({"e":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                                     R"("h":{"dtype":"F4","shape":[2,3],"data_offsets":[3,6]},)"
                                     R"("b":{"dtype":"BOOL","shape":[1],"data_offsets":[6,7]},)"
                                     R"("x":{"dtype":"X99","shape":[5],"data_offsets":[7,8]}})",
                                     "abcdefgh")));
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.find("e")->dtype_name, "F8_E4M3");
  EXPECT_EQ(file.find("e")->dtype, std::nullopt);
  EXPECT_EQ(text_of(file.find("h")->bytes), "def");
  for (const char* name : {"e", "h", "b", "x"}) {
    expect_error(ErrorKind::kInput, {"others", name, "dtype", "BF16"}, [&] { file.tensor(name); });
  }
}

TEST(SafetensorsFile, ListsButDoesNotReadTooManyDims) {
  TempFolder folder;
  SafetensorsFile file(folder.write(
      "dims", file_of(R"({"t":{"dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[0,1]}})", "x")));
  EXPECT_EQ(file.tensors()[0].shape.size(), 6u);
  expect_error(ErrorKind::kInput, {"dims", "'t'", "6 dims"}, [&] { file.tensor("t"); });
}

TEST(SafetensorsFile, AcceptsAFileWithoutTensors) {
  TempFolder folder;
  EXPECT_TRUE(SafetensorsFile(folder.write("a", file_of("{}", ""))).tensors().empty());
}

TEST(SafetensorsFile, RefusesBadHeaderLengths) {
  expect_refused("", "truncated");
  expect_refused("1234567", "truncated");
  expect_refused(std::string(8, '\0'), "does not start with '{'");
  expect_refused(file_of("{}", "", 3), "truncated");
  expect_refused(file_of("{}", "", 100'000'001), "over the limit");
  expect_refused(file_of("{}", "", ~std::uint64_t{0}), "over the limit");
  expect_refused(file_of("{}", "", ~std::uint64_t{0} - 7), "over the limit");
  expect_refused(file_of("{}", "", 1), "not valid JSON");
  expect_refused("PK\x03\x04 a zip file, as torch.save writes", "over the limit");
  // What a clone without git-lfs leaves.
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
                 "over the limit");
}

TEST(SafetensorsFile, RefusesBadHeaders) {
  expect_header_refused("[]", "", "'{'");
  expect_header_refused(" {}", "", "'{'");
  expect_header_refused("\xef\xbb\xbf{}", "", "'{'");
  expect_header_refused("{}{}", "", "not valid JSON");
  expect_header_refused(std::string_view("{}\0\0", 4), "", "zero byte");
  expect_header_refused(R"({"t":NaN})", "", "not valid JSON");
  expect_header_refused("{\"t\xff\":1}", "", "not valid JSON");
  expect_header_refused("{\"t\":" + std::string(1'000'000, '['), "", "deeper");
  expect_header_refused(R"({"t":[]})", "", "not an object");
  expect_header_refused(R"({"t":null})", "", "not an object");
  expect_header_refused(R"({"__metadata__":[]})", "", "__metadata__");
  expect_header_refused(R"({"__metadata__":{"n":1}})", "", "'n' is not a string");
}

TEST(SafetensorsFile, RefusesDuplicateNames) {
  std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_header_refused("{\"t\":" + entry + ",\"t\":" + entry + "}", "x", "'t' appears twice");
  expect_header_refused("{\"t\":" + entry + ",\"\\u0074\":" + entry + "}", "x",
                        "'t' appears twice");
  expect_header_refused(R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                        "x", "'dtype' appears twice");
}

void expect_entry_refused(std::string_view dtype, std::string_view shape, std::string_view offsets,
                          const std::string& part) {
  std::string header = concat(R"({"t":{"dtype":)", dtype, R"(,"shape":)", shape,
                              R"(,"data_offsets":)", offsets, "}}");
  TempFolder folder;
  std::string path = folder.write("bad.safetensors", file_of(header, "12345678"));
  expect_error(ErrorKind::kInput, {"bad.safetensors", "'t'", part},
               [&] { SafetensorsFile file(path); });
}

TEST(SafetensorsFile, RefusesBadEntries) {
  const char *f32 = "\"F32\"", *u8 = "\"U8\"";
  expect_entry_refused("1", "[2]", "[0,8]", "dtype");
  expect_entry_refused("null", "[2]", "[0,8]", "dtype");
  for (const char* shape : {"2", "{}", "\"2\"", "null"}) {
    expect_entry_refused(f32, shape, "[0,8]", "no array 'shape'");
  }
  for (const char* shape :
       {"[-2]", "[2.0]", "[2e0]", "[\"2\"]", "[true]", "[null]", "[-0]", "[[2]]", "[{}]",
        "[9223372036854775808]", "[18446744073709551616]", "[1e300]"}) {
    expect_entry_refused(f32, shape, "[0,8]", "whole number");
  }
  expect_entry_refused(f32, "[2]", "[0]", "data_offsets");
  expect_entry_refused(f32, "[2]", "[0,8,8]", "data_offsets");
  expect_entry_refused(f32, "[2]", "[8,0]", "data_offsets");
  expect_entry_refused(f32, "[2]", "[-1,8]", "whole number");
  expect_entry_refused(f32, "[2]", "[0,9]", "truncated");
  expect_entry_refused(f32, "[2]", "[0,18446744073709551615]", "whole number");
  expect_entry_refused(f32, "[2]", "[9223372036854775799,9223372036854775807]", "truncated");
  expect_entry_refused(f32, "[3]", "[0,8]", "needs 12 bytes");
  expect_entry_refused(f32, "[]", "[0,8]", "needs 4 bytes");
  expect_entry_refused(f32, "[0]", "[0,8]", "needs 0 bytes");
  // Products that wrap around to the right size.
  expect_entry_refused(u8, "[4294967296,4294967296,8]", "[0,8]", "overflow");
  expect_entry_refused(f32, "[4611686018427387906]", "[0,8]", "overflow");
  expect_entry_refused(u8, "[9223372036854775807,9223372036854775807,0]", "[0,0]", "overflow");
  expect_entry_refused("\"F4\"", "[15]", "[0,8]", "whole bytes");
}

TEST(SafetensorsFile, RefusesMissingKeys) {
  expect_header_refused(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", "x", "dtype");
  expect_header_refused(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", "x", "shape");
  expect_header_refused(R"({"t":{"dtype":"U8","shape":[1]}})", "x", "data_offsets");
}

std::string two_tensors(std::string_view offsets_a, std::string_view offsets_b, int bytes) {
  return file_of(concat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", offsets_a,
                        R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", offsets_b, "}}"),
                 std::string(static_cast<std::size_t>(bytes), 'x'));
}

TEST(SafetensorsFile, RefusesOverlapsGapsAndRests) {
  expect_refused(two_tensors("[0,4]", "[0,4]", 4), "inside another tensor");
  expect_refused(two_tensors("[0,4]", "[3,7]", 7), "inside another tensor");
  expect_refused(two_tensors("[5,9]", "[0,4]", 9), "after a gap");
  expect_refused(two_tensors("[1,5]", "[5,9]", 9), "after a gap");
  expect_refused(two_tensors("[0,4]", "[4,8]", 9), "1 bytes after the last tensor");
  expect_refused(two_tensors("[0,4]", "[4,8]", 7), "truncated");
  expect_header_refused("{}", "x", "1 bytes after the last tensor");
  // An empty tensor in the middle of another one.
  expect_header_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                        "xxxx", "inside another tensor");
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  TempFolder folder;
  std::string whole = two_tensors("[0,4]", "[4,8]", 8);
  SafetensorsFile fine(folder.write("whole", whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::string path = folder.write("cut", whole.substr(0, size));
    expect_error(ErrorKind::kInput, {"cut"}, [&] { SafetensorsFile file(path); });
  }
}

// No single changed header byte may do more than give an Error or another valid file.
TEST(SafetensorsFile, SurvivesEveryChangedByte) {
  TempFolder folder;
  std::string whole = two_tensors("[0,4]", "[4,8]", 8);
  for (std::size_t at = 0; at + 8 < whole.size(); ++at) {
    for (unsigned char change : {0x01, 0x10, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ change);
      std::string path = folder.write("changed", changed);
      try {
        SafetensorsFile file(path);
        for (const StoredTensor& tensor : file.tensors()) EXPECT_LE(tensor.bytes.size(), 8u);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      }
    }
  }
}

TEST(SafetensorsFile, MissingFileIsAnIoError) {
  expect_error(ErrorKind::kInput, {"/nowhere/x"}, [] { SafetensorsFile file("/nowhere/x"); });
  expect_error(ErrorKind::kInput, {"/tmp"}, [] { SafetensorsFile file("/tmp"); });
}

TEST(SafetensorsFile, HostileNamesDoNotReachTheTerminal) {
  TempFolder folder;
  std::string name = "\\u001b[2J" + std::string(5000, 'n');
  std::string path = folder.write("a", file_of("{\"" + name + "\":1}", ""));
  try {
    SafetensorsFile file(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\x1b'), std::string_view::npos);
    EXPECT_LT(std::strlen(error.what()), 300u);
  }
}

TEST(SafetensorsWriter, WritesWhatTheReferenceWrites) {
  TempFolder folder;
  std::string path = folder.path("a.safetensors");
  SafetensorsWriter writer(path, {{"w", Dtype::kF32, {2, 1}}, {"é\"\n", Dtype::kU8, {3}}});
  writer.write("w", bytes_of("12345678"));
  writer.write("é\"\n", bytes_of("abc"));
  EXPECT_FALSE(path_exists(path));
  writer.commit();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("é\"\n":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.resize(round_up(header.size(), 8), ' ');
  EXPECT_EQ(read_file(path), file_of(header, "12345678abc"));
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"a.safetensors"});
}

TEST(SafetensorsWriter, AlignsMixedDtypesAndTakesChunks) {
  TempFolder folder;
  std::string path = folder.path("a.safetensors");
  SafetensorsWriter writer(path, {{"u", Dtype::kU8, {3}},
                                  {"b1", Dtype::kBf16, {1}},
                                  {"none", Dtype::kI32, {0, 5}},
                                  {"d", Dtype::kF64, {2}},
                                  {"b0", Dtype::kBf16, {}}});
  std::vector<std::string> order;
  for (const TensorSpec& tensor : writer.tensors()) {
    order.push_back(tensor.name);
    for (std::size_t i = 0; i < tensor.bytes(); ++i) {
      char byte = static_cast<char>(tensor.name[0] + i);
      writer.write(tensor.name, bytes_of({&byte, 1}));
    }
    writer.write(tensor.name, {});
  }
  EXPECT_EQ(order, (std::vector<std::string>{"d", "none", "b1", "b0", "u"}));
  writer.commit();

  SafetensorsFile file(path);
  for (const StoredTensor& tensor : file.tensors()) {
    auto offset = reinterpret_cast<std::uintptr_t>(tensor.bytes.data());
    EXPECT_EQ(offset % size_of(*tensor.dtype), 0u) << tensor.name;
  }
  EXPECT_EQ(text_of(file.tensor("u").bytes), "uvw");
  EXPECT_EQ(text_of(file.tensor("b0").bytes), "bc");
  EXPECT_EQ(file.tensor("none").shape, (Shape{0, 5}));
}

TEST(SafetensorsWriter, LeavesNothingWithoutCommit) {
  TempFolder folder;
  std::string path = folder.write("a.safetensors", "old");
  {
    SafetensorsWriter writer(path, {{"w", Dtype::kF32, {2}}});
    writer.write("w", bytes_of("1234"));
    expect_error(ErrorKind::kInternal, {path, "'w' is missing"}, [&] { writer.commit(); });
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(list_directory(folder.path()).size(), 1u);
}

TEST(SafetensorsWriter, RefusesWrongUse) {
  TempFolder folder;
  std::string path = folder.path("a");
  auto declare = [&](std::vector<TensorSpec> tensors) { SafetensorsWriter writer(path, tensors); };
  expect_error(ErrorKind::kInternal, {"'w'", "twice"}, [&] {
    declare({{"w", Dtype::kF32, {1}}, {"w", Dtype::kF64, {1}}});
  });
  expect_error(ErrorKind::kInternal, {"reserved"}, [&] {
    declare({{"__metadata__", Dtype::kF32, {1}}});
  });
  expect_error(ErrorKind::kInternal, {"header"}, [&] { declare({{"\xff", Dtype::kF32, {1}}}); });

  SafetensorsWriter writer(path, {{"v", Dtype::kU8, {2}}, {"w", Dtype::kU8, {2}}});
  expect_error(ErrorKind::kInternal, {"turn of 'v'"}, [&] { writer.write("w", bytes_of("12")); });
  expect_error(ErrorKind::kInternal, {"2 bytes, given 3"},
               [&] { writer.write("v", bytes_of("123")); });
  writer.write("v", bytes_of("12"));
  writer.write("w", bytes_of("12"));
  expect_error(ErrorKind::kInternal, {"complete"}, [&] { writer.write("w", bytes_of("1")); });
  writer.commit();
  expect_error(ErrorKind::kInternal, {"twice"}, [&] { writer.commit(); });
}

}  // namespace
}  // namespace bev
