#include "app/commands.h"
#include "base/log.h"
#include "base/text.h"
#include "bridge/hf_model.h"
#include "bridge/weight_files.h"

namespace bev {

int run_convert(CommandConfig& config, const FieldList&, Options& options) {
  const ConvertOptions& convert = config.convert;
  options.add_problems(convert.problems());
  options.throw_problems();
  if (config.launch.process != 0) return kExitOk;  // one does it for all
  check_export_folder(convert.export_hf);
  std::optional<Dtype> dtype;
  if (!convert.dtype.empty()) dtype = parse_dtype(convert.dtype);
  convert_hf(convert.hf_model, convert.export_hf, dtype);
  log_info(concat("wrote ", convert.export_hf));
  return kExitOk;
}

}  // namespace bev
