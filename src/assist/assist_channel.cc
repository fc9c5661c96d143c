// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_channel.h"

#include <cstring>
#include <new>
#include <utility>

namespace loralei {
namespace {

constexpr int64_t kLineBytes = 64;
int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t stride_of(int32_t width) { return round_up(width, kLineBytes / 4); }

}  // namespace

AssistLayout assist_layout(const AssistShape& shape, int32_t rows_max) {
  AssistLayout layout;
  layout.x_stride = stride_of(shape.in_max());
  layout.x_offset = round_up(static_cast<int64_t>(sizeof(AssistHeader)), kLineBytes);
  const int64_t sums_offset = layout.x_offset + rows_max * layout.x_stride * 4;
  layout.bytes = sums_offset;
  for (const uint32_t group : kAssistGroups) {
    int64_t end = sums_offset;
    for (size_t module = 0; module < kLayerModules; ++module) {
      if ((group >> module & 1) == 0) continue;
      layout.sums_stride[module] = stride_of(shape.outs[module]);
      layout.sums_offset[module] = end;
      end += rows_max * layout.sums_stride[module] * 4;
    }
    layout.bytes = std::max(layout.bytes, end);
  }
  return layout;
}

Status check_assist_settings(const AssistChannel::Settings& settings) {
  TRY(check_assist_shape(settings.shape));
  if (settings.rows_max < 1 || settings.rows_max > kAssistRowsMax)
    return invalid_argument("a helper takes 1 to " + std::to_string(kAssistRowsMax) + " rows a message, not " +
                            std::to_string(settings.rows_max));
  if (settings.ops_table.empty() || settings.ops_table.size() >= sizeof AssistHeader::ops_table)
    return invalid_argument("'" + settings.ops_table + "' is no name of an instruction set");
  return {};
}

Result<AssistChannel> AssistChannel::create(const std::string& name, const Settings& settings) {
  TRY(check_assist_settings(settings));
  AssistChannel channel;
  channel.settings_ = settings;
  channel.layout_ = assist_layout(settings.shape, settings.rows_max);
  TRY_ASSIGN(channel.memory_, SharedMemory::create(name, channel.layout_.bytes));
  channel.header_ = new (channel.memory_.data()) AssistHeader{};
  AssistHeader& header = *channel.header_;
  header.magic = kAssistMagic;
  header.version = kAssistVersion;
  header.bytes = channel.layout_.bytes;
  header.shape = settings.shape;
  header.rows_max = settings.rows_max;
  header.cpu = settings.cpu;
  header.spin_ns = settings.spin_ns;
  std::memcpy(header.ops_table, settings.ops_table.data(), settings.ops_table.size());
  return channel;
}

Result<AssistChannel> AssistChannel::open(Descriptor descriptor) {
  AssistChannel channel;
  TRY_ASSIGN(channel.memory_,
             SharedMemory::open(std::move(descriptor), sizeof(AssistHeader), SharedMemory::Access::kReadWrite));
  channel.header_ = std::launder(reinterpret_cast<AssistHeader*>(channel.memory_.data()));
  const AssistHeader& header = *channel.header_;
  if (header.magic != kAssistMagic) return corrupt("the memory that a helper was given is none of a server's channels");
  if (header.version != kAssistVersion)
    return unsupported("the server's channel has version " + std::to_string(header.version) + ", this program's " +
                       std::to_string(kAssistVersion) + "; start the server again, with one program for both");
  Settings& settings = channel.settings_;
  settings = {header.shape, header.rows_max, header.cpu, header.spin_ns,
              std::string(header.ops_table, ::strnlen(header.ops_table, sizeof header.ops_table))};
  TRY(check_assist_settings(settings));
  channel.layout_ = assist_layout(settings.shape, settings.rows_max);
  if (channel.layout_.bytes != channel.memory_.size_bytes() || header.bytes != channel.memory_.size_bytes())
    return corrupt("the server's channel has " + std::to_string(channel.memory_.size_bytes()) + " bytes instead of " +
                   std::to_string(channel.layout_.bytes));
  return channel;
}

}  // namespace loralei
