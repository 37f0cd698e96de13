// Flags of examples with labels, for fine-tuning of encoders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/labelled/text_example.h"

namespace bev {

class FieldList;

struct LabelConfig {
  TextColumns columns;
  std::vector<std::string> names;     // of the labels, by number; empty: those of the data
  std::vector<double> class_weights;  // by number; empty: 1
  // Known from the model: not flags.
  std::int64_t token_types = 0;
  bool double_separator = false;

  // The columns alone, for commands that read such files.
  void column_fields(FieldList& list);
  void fields(FieldList& list);
};

}  // namespace bev
