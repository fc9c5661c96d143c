// SPDX-License-Identifier: Apache-2.0
#include "serve/kv_shown.h"

#include <set>
#include <string_view>
#include <utility>

#include "wire/errors.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

using NameOf = std::function<std::string(const std::string&)>;

void put_holder(JsonOut& out, const KvHolder& holder, const NameOf& name_of) {
  out.begin_object().key("adapters").begin_array();
  for (const KvHolder::Adapter& adapter : holder.adapters) {
    out.begin_object().key("name").string_or_null(name_of(adapter.version)).key("version").string(adapter.version);
    out.key("scale").real(adapter.scale).key("from_token").number(adapter.from_token);
    out.key("from_layer").number(adapter.from_layer).end_object();
  }
  out.end_array().key("salted").boolean(holder.salted);
  out.key("tokens").number(holder.tokens).key("bytes").number(holder.bytes);
  out.key("running_tokens").number(holder.running_tokens).key("alone_tokens").number(holder.alone_tokens);
  out.key("raw_tokens").number(holder.raw_tokens).key("alone_coded_tokens").number(holder.alone_coded_tokens);
  out.key("delta_tokens").number(holder.delta_tokens).key("gone_tokens").number(holder.gone_tokens);
  out.key("stored_bytes").number(holder.stored_bytes);
  out.key("hit_tokens").number(holder.hit_tokens).key("saved_s").real(holder.saved_s).end_object();
}

void put_coded(JsonOut& out, const KvCoded& coded) {
  out.key("encoded").begin_object();
  out.key("sharing")
      .string(kKvSharingNames[static_cast<size_t>(coded.sharing)])
      .key("delta")
      .string(kKvDeltaNames[static_cast<size_t>(coded.delta)])
      .key("blobs")
      .number(coded.blobs)
      .key("bytes")
      .number(coded.bytes);
  out.key("pages").number(coded.pages).key("page_bytes").number(coded.page_bytes);
  out.key("encoded_blocks").number(coded.times.encoded_blocks).key("recoded_blocks").number(coded.times.recoded_blocks);
  out.key("decoded_blocks").number(coded.times.decoded_blocks).key("damaged_blocks").number(coded.times.damaged_blocks);
  out.key("encode_s").real(static_cast<double>(coded.times.encode_ns) * 1e-9);
  out.key("decode_s").real(static_cast<double>(coded.times.decode_ns) * 1e-9).end_object();
}

// null where nothing is kept there.
void put_disk(JsonOut& out, const KvState& state) {
  out.key("disk");
  if (!state.disk) {
    out.null();
    return;
  }
  const KvDiskStats& disk = *state.disk;
  out.begin_object().key("tokens").number(disk.records * state.block_tokens).key("bytes").number(disk.bytes);
  out.key("bytes_most").number(disk.bytes_most).key("found_tokens").number(disk.found_records * state.block_tokens);
  out.key("written_tokens").number(disk.written_blocks * state.block_tokens);
  out.key("restored_tokens").number(state.restored_tokens);
  out.key("read_bytes").number(disk.read_bytes).key("read_s").real(disk.read_s);
  out.key("lost_tokens").number(disk.lost_records * state.block_tokens).end_object();
}

// null where the model keeps none.
void put_states(JsonOut& out, const KvState& state) {
  out.key("states");
  if (!state.states) {
    out.null();
    return;
  }
  const KvStates& states = *state.states;
  out.begin_object().key("total").number(states.slots).key("running").number(states.running);
  out.key("kept").number(states.snapshots).key("bytes").number(states.bytes);
  out.key("kept_total").number(static_cast<int64_t>(states.kept));
  out.key("dropped_total").number(static_cast<int64_t>(states.dropped));
  out.key("found_total").number(static_cast<int64_t>(states.found)).end_object();
}

// As requests may name it.
std::string name_of(const AdapterSourceSpec& source, const Catalogue& catalogue) {
  for (const CatalogueEntry& version : catalogue.versions(source.label))
    if (version.source == source.id) return shown_name(catalogue, version);
  return source.label;
}

}  // namespace

std::string kv_body(const KvState& state, const KvNames& names) {
  const NameOf name_of = [&names](const std::string& version) {
    const auto name = names.find(version);
    return name == names.end() ? std::string() : name->second;
  };
  JsonOut out;
  out.begin_object().key("block_tokens").number(state.block_tokens).key("block_bytes").number(state.block_bytes);
  out.key("total_tokens").number(state.total_tokens).key("free_tokens").number(state.free_tokens);
  out.key("running_tokens").number(state.running_tokens).key("cached_tokens").number(state.cached_tokens);
  out.key("text_tokens").number(state.text_tokens).key("held_tokens").number(state.held_tokens);
  put_coded(out, state.coded);
  put_disk(out, state);
  put_states(out, state);
  out.key("holders").number(state.holders).key("first").begin_array();
  for (const KvHolder& holder : state.first) put_holder(out, holder, name_of);
  return out.end_array().end_object().take();
}

KvNames kv_names(const KvState& state, const AdapterList& adapters, const Catalogue& catalogue) {
  std::set<std::string_view> wanted;
  for (const KvHolder& holder : state.first)
    for (const KvHolder::Adapter& adapter : holder.adapters) wanted.insert(adapter.version);
  KvNames names;
  if (wanted.empty()) return names;
  for (const auto& adapter : adapters)
    if (wanted.contains(adapter->version)) names.emplace(adapter->version, name_of(adapter->source, catalogue));
  return names;
}

void show_kv(const ServeContext& context, const Catalogue& catalogue, std::shared_ptr<Reply> reply) {
  const auto answer = [reply, &catalogue, &dispatcher = context.dispatcher](const CommandReply& answered) {
    if (!answered.status.ok()) return reply->refuse(to_api_error(answered.status.error()));
    reply->json(200, kv_body(*answered.kv, kv_names(*answered.kv, dispatcher.adapters().list(), catalogue)));
  };
  const Status status = context.dispatcher.command(KvCommand{}, answer);
  if (!status.ok()) reply->refuse(to_api_error(status.error()));
}

}  // namespace loralei
