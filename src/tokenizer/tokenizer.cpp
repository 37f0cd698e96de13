#include "tokenizer/tokenizer.h"

#include "base/file.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  std::string path = join_path(folder, "tokenizer.json");
  if (!path_exists(path)) return nullptr;
  if (is_byte_tokenizer(read_file(path), path)) return std::make_unique<ByteTokenizer>();
  return nullptr;
}

}  // namespace bev
