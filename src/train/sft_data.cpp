#include "train/sft_data.h"

#include "base/error.h"
#include "base/log.h"

namespace bev {

std::shared_ptr<const SftDataset> open_sft_data(const DataConfig& config, DataSplit split,
                                                std::int64_t vocab_size, std::uint64_t seed) {
  bool training = split == DataSplit::kTrain;
  SftConfig sft;
  sft.files = training ? config.sft_data : config.sft_valid_data;
  sft.seq_length = config.seq_length;
  sft.vocab_size = vocab_size;
  sft.seed = seed;
  sft.shuffle = training;
  sft.too_long = config.sft_too_long;
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(config.tokenizer, config.tiktoken);
  ChatTemplate chat_template = ChatTemplate::load(config.tokenizer, config.chat_template, false);
  auto data = std::make_shared<SftDataset>(sft, *tokenizer, chat_template);
  log_info(concat(name_of(split), " data: ", to_text(data->report(), config.seq_length)));
  return data;
}

}  // namespace bev
