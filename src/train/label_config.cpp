#include "train/label_config.h"

#include "base/fields.h"

namespace bev {

void LabelConfig::column_fields(FieldList& list) {
  list.section("columns of labels");
  list.add("text-column", columns.text, "column of the text, the words or the question")
      .defaults_to("text; tokens; question");
  list.add("pair-column", columns.pair, "column of a second text, or of the text with the answer")
      .defaults_to("text_pair, if there is one; context");
  list.add("label-column", columns.label, "column of the class or number, the tags or the answers")
      .defaults_to("label; tags; answers");
}

void LabelConfig::fields(FieldList& list) {
  column_fields(list);
  list.section("labels");
  list.add("label-names", names, "names of the labels, by number")
      .defaults_to("those of the model, else of the data in order");
  list.add("class-weights", class_weights, "weight of each label in the loss, by number")
      .above(0)
      .defaults_to("1");
}

}  // namespace bev
