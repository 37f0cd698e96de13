#include "models/families/proven.h"

namespace bev {

namespace {
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = text.find(' ');
    words.push_back(text.substr(0, end));
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  return words;
}
}  // namespace

std::vector<ProvenFamily> proven_families() {
  return {
#define BEV_PROVEN(family, fixtures, layouts) {family, words_of(fixtures), words_of(layouts)},
#include "models/families/proven.def"
  };
}

std::vector<RefusedSetting> refused_settings() {
  return {
#define BEV_REFUSED(family, key, value) {family, key, value},
#include "models/families/refused.def"
  };
}

}  // namespace bev
