// Entries of one column in one row group, page by page: memory holds a page and the dictionary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet/parquet_schema.h"
#include "data/parquet/rle_decoder.h"

namespace bev {

class ColumnReader {
 public:
  // Repetition level (0: begins a row; else the list that goes on) and definition level (how much
  // of the path to the value is there).
  struct Levels {
    std::uint32_t rep = 0, def = 0;
  };

  // `node` is the column; file and node must outlive the reader. Throws Error(kInput) if the type
  // is not supported.
  ColumnReader(std::string_view file, const ParquetChunk& chunk, const ParquetNode& node);

  // Levels of the next entry; nullptr at the end. Throws Error(kInput) if a page is damaged or of
  // an unknown kind.
  const Levels* peek();
  // Appends the value of the next entry as JSON, or null, and goes on. There must be one.
  void take(std::string& json);
  // Goes on to the next entry.
  void skip();

  // Rows that have begun.
  std::int64_t rows() const { return rows_; }
  // Offset in the file behind the last page.
  std::int64_t position() const { return chunk_.offset + static_cast<std::int64_t>(at_); }

 private:
  struct PageHeader;
  enum class Values : std::uint8_t { kPlain, kDictionary, kRunLength };

  bool load_page();
  PageHeader read_header();
  void load_dictionary(const PageHeader& header, std::string_view bytes);
  void load_data(const PageHeader& header, std::string_view bytes);
  void load_data_v2(const PageHeader& header, std::string_view bytes);
  void start_values(std::int64_t encoding, std::string_view values);
  std::string_view take_levels(std::string_view& bytes) const;
  std::string_view next_value();
  std::string_view next_plain(std::string_view& bytes) const;

  const ParquetChunk& chunk_;
  const ParquetNode& node_;
  std::string_view bytes_;  // pages of the chunk
  std::size_t at_ = 0;
  std::int64_t values_left_ = 0;  // entries of pages that are not loaded
  std::int64_t rows_ = 0;

  std::string dictionary_bytes_;
  std::vector<std::string_view> dictionary_;

  std::string page_;
  std::int64_t page_left_ = 0;
  bool have_levels_ = false;
  Levels levels_;
  RleDecoder reps_, defs_, indices_;
  Values values_kind_ = Values::kPlain;
  std::string_view values_;
  std::uint32_t bits_used_ = 0;  // of the first byte of plain truth values
};

}  // namespace bev
