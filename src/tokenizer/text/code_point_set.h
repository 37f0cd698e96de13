// Set of code points as sorted ranges; represents a regular expression's character class.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text/unicode.h"

namespace bev {

class CodePointSet {
 public:
  void add(CodePoint first, CodePoint last);
  void add(const CodePointSet& other);
  CodePointSet complement() const;
  CodePointSet intersection(const CodePointSet& other) const;
  // Sorted, disjoint and not adjacent.
  const std::vector<CodePointRange>& ranges() const { return ranges_; }

  // [\x{61}-\x{7a}...]
  std::string regex() const;

 private:
  std::vector<CodePointRange> ranges_;
};

// True for a general category or a group of them: Lu, L, LC.
bool is_category_name(std::string_view name);
CodePointSet category_set(std::string_view name);
CodePointSet trait_set(std::uint16_t bits);

}  // namespace bev
