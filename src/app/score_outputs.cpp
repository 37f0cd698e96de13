#include "app/score_outputs.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/text.h"
#include "bridge/safetensors.h"
#include "infer/model_outputs.h"

namespace bev {

namespace {

std::optional<ModelOutput> find_output(const ModelConfig& model, const std::string& name) {
  for (ModelOutput& output : outputs_of(model)) {
    if (output.name == name) return std::move(output);
  }
  return std::nullopt;
}

TensorSpec spec_of(const ModelOutput& output, const GlobalBatch& batch, Dtype dtype) {
  const std::int64_t samples = std::ssize(batch.samples);
  if (!output.by_token) return {output.name, dtype, {samples, output.columns}};
  if (output.flat) return {output.name, dtype, {samples, batch.columns}};
  return {output.name, dtype, {samples, batch.columns, output.columns}};
}

// The rows of a sample at the columns of its tokens.
std::vector<double> padded(const ModelOutput& output, std::span<const double> rows,
                           const TokenSample& sample, std::int64_t columns) {
  if (!output.by_token) return {rows.begin(), rows.end()};
  const auto width = static_cast<std::size_t>(output.columns);
  std::vector<double> out(static_cast<std::size_t>(columns) * width);
  for (std::int32_t column : columns_of(sample)) {
    std::ranges::copy(rows.first(width), out.begin() + static_cast<std::ptrdiff_t>(column) *
                                                           static_cast<std::ptrdiff_t>(width));
    rows = rows.subspan(width);
  }
  return out;
}

void write_row(SafetensorsWriter& writer, const std::string& name, Dtype dtype,
               const std::vector<double>& row) {
  if (dtype == Dtype::kF64) return writer.write(name, std::as_bytes(std::span(row)));
  const std::vector<float> narrow(row.begin(), row.end());
  writer.write(name, std::as_bytes(std::span(narrow)));
}

}  // namespace

std::vector<std::string> output_problems(const ModelConfig& model,
                                         const std::vector<std::string>& names,
                                         const std::string& file) {
  std::vector<std::string> out;
  if (names.empty() != file.empty()) {
    out.push_back(names.empty() ? "--outputs-out: needs --outputs NAME, .."
                                : "--outputs: needs --outputs-out FILE");
  }
  std::vector<std::string> known;
  for (const ModelOutput& output : outputs_of(model)) known.push_back(output.name);
  for (const std::string& name : names) {
    if (find_output(model, name)) continue;
    out.push_back(
        concat("--outputs: the model has no ", name, "; its outputs are ", join(known, ", ")));
  }
  return out;
}

void write_outputs(RankModel& model, const std::vector<std::string>& names, const std::string& file,
                   const GlobalBatch& batch, std::int64_t micro_batch_size) {
  const Dtype dtype = model.options().dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  std::vector<ModelOutput> outputs;
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    outputs.push_back(*find_output(model.options().model, name));
    specs.push_back(spec_of(outputs.back(), batch, dtype));
  }
  std::unique_ptr<SafetensorsWriter> writer;
  if (model.mesh().world().rank() == 0) writer = std::make_unique<SafetensorsWriter>(file, specs);
  for (const ModelOutput& output : outputs) {
    auto sample = batch.samples.begin();
    compute_output(
        model, output, batch.samples, micro_batch_size, [&](std::span<const double> rows) {
          write_row(*writer, output.name, dtype, padded(output, rows, *sample++, batch.columns));
        });
  }
  if (writer) writer->commit();
}

}  // namespace bev
