#include "comm/wait_records.h"

#include <nlohmann/json.hpp>

namespace bev {

using nlohmann::json;

std::string write_wait_records(std::span<const WaitRecord> records) {
  json list = json::array();
  for (const WaitRecord& record : records) {
    const Activity::Snapshot& doing = record.doing;
    list.push_back({record.rank, doing.step, doing.micro_batch, doing.layer, doing.action, doing.op,
                    record.collective, record.label, record.group, record.data, record.absent,
                    record.seconds, record.known, record.ended});
  }
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<WaitRecord> read_wait_records(std::string_view text, std::set<std::string>& names) {
  std::vector<WaitRecord> records;
  for (const json& item : json::parse(text)) {
    WaitRecord record;
    auto keep = [&](const json& name) { return names.insert(name.get<std::string>()).first; };
    record.rank = item[0];
    record.doing = {item[1], item[2], item[3], keep(item[4])->c_str(), keep(item[5])->c_str()};
    item[6].get_to(record.collective);
    item[7].get_to(record.label);
    item[8].get_to(record.group);
    item[9].get_to(record.data);
    item[10].get_to(record.absent);
    record.seconds = item[11];
    record.known = item[12];
    record.ended = item[13];
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace bev
