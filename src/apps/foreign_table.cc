// SPDX-License-Identifier: Apache-2.0
// The options of vLLM 0.33, SGLang 0.5.23, llama.cpp (September 2026) and LoRAX that are
// not this server's own.
#include "apps/foreign_options.h"

namespace loralei {
namespace {

constexpr const char* kAny = ForeignGroup::kAny;
constexpr const char* kNone = ForeignGroup::kNone;

constexpr ForeignGroup kGroups[] = {
    {kAny,
     "adapters are always served, any number of them in one batch; loaded ones are limited in bytes (--adapter-memory)",
     "--adapter-cycle-time-s= --adapter-memory-fraction= --compile-max-rank= --disable-sgmv --enable-lora "
     "--enable-lora-bias --enable-lora-overlap-loading --enable-mixed-moe-lora-format "
     "--enable-moe-shared-loras --enable-tower-connector-lora --experts-shared-outer-loras= "
     "--fully-sharded-loras --lora-backend= --lora-drain-wait-threshold= --lora-eviction-policy= "
     "--lora-extra-vocab-size= --lora-use-virtual-experts --max-active-adapters= "
     "--max-cpu-loras= --max-loaded-loras= --max-lora-chunk-size= --max-lora-cls-labels= "
     "--max-loras-per-batch= --max-loras= --specialize-active-lora"},
    {kAny, "whatever an adapter's file holds is applied, and what cannot be is said", "--lora-target-modules="},
    {kAny, "adapters that ask for what is not applied are refused unless --adapter-strict=false is given",
     "--lora-strict-loading"},
    {"auto", "adapters are kept as their files hold them; --adapter-quant int8 makes them smaller", "--lora-dtype="},
    {kNone, "name each adapter with --adapter NAME=PATH; requests choose them by name",
     "--default-mm-loras= --long-lora-scaling-factors= --merge-adapter-weights --uno-lora-path="},
    {"local", "adapters lie on this machine, or are named on a hub at the start, with --adapter NAME=ORG/NAME",
     "--adapter-source= --default-adapter-source= --preloaded-adapter-source= --source="},
    {kNone, "set the variable HF_TOKEN", "--hf-token="},
    {kNone, "adapters lie on this machine, or are named on a hub at the start, with --adapter NAME=ORG/NAME",
     "--predibase-api-token="},
    {kAny,
     "adapters are applied where a request names them, or where POST /lora-adapters has made them the default of "
     "requests that name none",
     "--lora-init-without-apply"},
    {kNone,
     "name the adapter with --adapter NAME=PATH and give the scale in the request: \"lora\": [{\"id\": NAME, "
     "\"scale\": 0.5}], or for requests that name none with POST /lora-adapters: [{\"id\": NAME, \"scale\": 0.5}]",
     "--lora-scaled="},
    {kNone,
     "write the model as ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M (or a GGUF file's name behind the colon)",
     "--code-revision= --docker-repo= --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-14b-spec "
     "--fim-qwen-30b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec "
     "--gpt-oss-120b-default --gpt-oss-20b-default --hf-file= --hf-repo-draft= --model-url= "
     "--models-dir= --models-preset= --revision= --spec-default --spec-draft-hf= --tokenizer-revision= "
     "--vision-gemma-12b-default --vision-gemma-4b-default"},
    {kNone, "loralei pull ORG/NAME fetches a model, and loralei list shows what there is",
     "--cache-list --download-only"},
    {kAny, "one model is served, of whose repository nothing but weights, configs and tokenizers is fetched, checked",
     "--decrypted-config-file= --decrypted-draft-config-file= --ignore-patterns= --model-checksum= --models-autoload "
     "--models-max= --no-models-autoload --weights-cache-override="},
    {kAny, "prefixes are kept unless --no-prefix-cache is given",
     "--cache-idle-slots --cache-prompt --cache-reuse= --disable-chunked-prefix-cache "
     "--enable-cache-report --enable-page-major-kv-layout --enable-prefix-caching "
     "--enable-session-radix-cache --enable-unified-memory --no-cache-idle-slots "
     "--prefix-cache-retention-interval= --prefix-caching-hash-algo= --prefix-caching= "
     "--prefix-match-unit= --radix-cache-backend= --radix-eviction-policy-config= --radix-eviction-policy= "
     "--slot-prompt-similarity= --swa-prefix-tails="},
    {kAny,
     "prompts are computed in parts beside running answers (--max-num-batched-tokens), every token streams as it comes",
     "--async-scheduling --batch-notify-size= --chunked-prefill= --context-bucket= "
     "--disable-async-output-proc --disable-overlap-schedule --dp-sync-interval= --eager-prefill= "
     "--enable-chunked-prefill --enable-dynamic-chunking --enable-mixed-chunk --enable-prefill-delayer "
     "--incremental-streaming-output --long-prefill-token-threshold-adaptive "
     "--long-prefill-token-threshold= --max-batch-prefill-tokens= --max-prefill-tokens= "
     "--max-waiting-tokens= --memory-wiggle-room= --min-free-slots-delay= --multi-step-stream-outputs "
     "--num-continuous-decode-steps= --num-lookahead-slots= --num-scheduler-steps= "
     "--optimistic-prefill-attempts= --prefill-assistant --prefill-attention-backend= "
     "--prefill-context-parallel-size= --prefill-decode-interval-min-bs= --prefill-decode-interval= "
     "--prefill-delayer-forward-passes-buckets= --prefill-delayer-max-delay-ms= "
     "--prefill-delayer-max-delay-passes= --prefill-delayer-queue-min-ratio= "
     "--prefill-delayer-token-usage-low-watermark= --prefill-delayer-wait-seconds-buckets= "
     "--prefill-kv-cache-dequant-dtype= --prefill-max-requests= --prefill-only-disable-kv-cache "
     "--prefill-schedule-interval= --schedule-conservativeness= --schedule-heuristic= "
     "--scheduler-recv-interval= --scheduler-reserve-full-isl --stream-interval= --stream-output "
     "--use-v2-block-manager --waiting-served-ratio="},
    {kNone, "--schedule-policy priority takes requests by their priority, the lower number first",
     "--default-priority-value= --enable-priority-scheduling"},
    {kAny, "with --schedule-policy priority the lower number comes first", "--schedule-low-priority-values-first"},
    {kNone, "--schedule-policy says in which order requests begin; those that run are not sent away for others",
     "--abort-on-priority-when-disabled --disable-priority-preemption "
     "--ir-op-priority= --preemption-mode= "
     "--priority-scheduling-preemption-threshold= --retraction-policy= --scheduler-cls="},
    {kNone,
     "--max-num-batched-tokens is the most token rows of one step, --max-model-len the longest sequence, "
     "--kv-cache-memory the room for all",
     "--max-batch-total-tokens= --max-input-length= --max-total-tokens= --ubatch-size= --watermark="},
    {kNone, "--max-num-seqs is how many are computed together, --max-queued how many wait",
     "--max-concurrent-requests= --max-num-queued-tokens="},
    {kAny, "no code that comes with a model is ever run", "--trust-remote-code"},
    {"auto|safetensors|gguf|hf|huggingface|sequential|slow|fast|default", "the format is seen from the file",
     "--config-format= --load-format= --model-impl= --safetensors-load-strategy= --tokenizer-backend= "
     "--tokenizer-mode="},
    {kAny, "weights are read into memory, and streamed where --memory-budget is less than they need",
     "--check-tensors --checkpoint-engine-wait-weights-before-ready --delete-ckpt-after-loading "
     "--direct-io --lazy-mode= --load-mode= --max-parallel-loading-workers= --mlock --mmap "
     "--model-config-parser= --model-loader-extra-config= --no-direct-io --no-host --no-mmap --no-repack "
     "--pt-load-map-location= --repack --safetensors-prefetch-block-size= "
     "--safetensors-prefetch-num-threads= --startup-weight-load-mode= --use-tqdm-on-load "
     "--weight-cache-mode= --weight-cache-socket= --weight-cache-timeout= --weight-loader-disable-mmap "
     "--weight-loader-drop-cache-after-load --weight-loader-prefetch-checkpoints "
     "--weight-loader-prefetch-num-threads="},
    {kNone, "weights come from files on this machine",
     "--custom-weight-loader= --engine-info-bootstrap-port= --engram-config= --modelexpress-config= "
     "--remote-instance-weight-loader-backend= --remote-instance-weight-loader-seed-instance-ip= "
     "--remote-instance-weight-loader-seed-instance-service-port= "
     "--remote-instance-weight-loader-send-weights-group-ports= "
     "--remote-instance-weight-loader-start-seed-via-transfer-engine --weight-transfer-config= "
     "--weight-version="},
    {"1", "a model is computed by the cores of one machine or by one GPU (--device cuda:N)",
     "--api-server-count= --attention-context-parallel-size= --attention-data-parallel-size= "
     "--attn-cp-size= --attn-dp-size= --data-parallel-size-local= --data-parallel-size= --dcp-size= "
     "--decode-context-parallel-size= --dp-size= --dp= --dwdp-size= --ep-size= --ep= "
     "--expert-parallel-size= --moe-data-parallel-size= --moe-dense-tp-size= --moe-dp-size= --nnodes= "
     "--num-shard= --pipeline-parallel-size= --pp-size= --shared-experts-tp-size="},
    {"false", "a model is computed by the cores of one machine or by one GPU (--device cuda:N)", "--sharded="},
    {kNone, "a model is computed by the cores of one machine or by one GPU (--device cuda:N)",
     "--data-parallel-external-lb --data-parallel-hybrid-lb --data-parallel-multi-port-external-lb "
     "--elastic-ep-backend= --elastic-ep-initial-size= --elastic-ep-max-dp-size= "
     "--elastic-ep-scale-timeout= --enable-dp-attention --enable-dp-attention-local-control-broadcast "
     "--enable-dp-lm-head --enable-elastic-ep --enable-elastic-expert-backup --enable-expert-parallel "
     "--enable-prefill-cp --enable-scale-out --ep-join-mode= --ep-join-rank-offset= --grpc --grpc-mode "
     "--headless --max-ep-size= --rpc= --smg-grpc-mode --split-mode= --tensor-split= --use-ray "
     "--worker-use-ray="},
    {"mp|uni", "a model is computed by the cores of one machine or by one GPU (--device cuda:N)",
     "--distributed-executor-backend="},
    {kAny, "one process computes the model",
     "--all2all-backend= --base-gpu-id= --boundary-reduction= --cp-kv-cache-interleave-size= "
     "--cp-strategy= --cpu-distributed-timeout-seconds= --data-parallel-address= --data-parallel-backend= "
     "--data-parallel-rank= --data-parallel-rpc-port= --data-parallel-start-rank= "
     "--data-parallel-supervisor-port= --dcp-comm-backend= --dcp-kv-cache-interleave-size= "
     "--dcp-q-replicate --dcp-replicate-q-proj= --device-ids= --disable-attn-tp-gather "
     "--disable-custom-all-reduce --disable-nccl-for-dp-synchronization --dist-init-addr= --dist-timeout= "
     "--distributed-timeout-seconds= --dp-supervisor-probe-failure-threshold= "
     "--dp-supervisor-probe-interval-s= --dp-supervisor-probe-timeout-s= --enable-attn-tp-input-scattered "
     "--enable-batch-sharded-sampling --enable-cp-decode-attn-tp --enable-dense-mlp-attn-tp "
     "--enable-fault-tolerance --enable-hc-sp --enable-kv-cache-sharding --enable-layernorm-sp "
     "--enable-nccl-comm-suspend --enable-nccl-nvls --enable-p2p-check --enable-quant-communications "
     "--enable-scattered-sconv --enable-shared-experts-attn-tp --enable-tp-lm-head-all-to-all "
     "--fault-tolerance-config= --gated-launch-port= --gpu-id-step= --grpc-http-sidecar-port= --grpc-port= "
     "--grpc-response-timeout-secs= --load-balance-method= --load-publish-endpoint= "
     "--load-snapshot-publish-interval= --main-gpu= --master-addr= --master-port= --nccl-init-addr= "
     "--nccl-port= --node-rank= --pp-async-batch-depth= --pp-max-micro-batch-size= --pre-warm-nccl "
     "--ray-workers-use-nsight --shard-uds-path= --tokens-only --worker-cls= --worker-extension-cls="},
    {kAny, "--threads says how many cores compute",
     "--cpu-mask-batch-draft= --cpu-mask-batch= --cpu-mask-draft= --cpu-mask= --cpu-range-batch= "
     "--cpu-range-draft= --cpu-range= --cpu-strict-batch-draft= --cpu-strict-batch= --cpu-strict-draft= "
     "--cpu-strict= --detokenizer-worker-num= --disable-frontend-multiprocessing "
     "--disable-tokenizer-batch-decode --dynamic-batch-tokenizer-batch-size= "
     "--dynamic-batch-tokenizer-batch-timeout= --enable-dynamic-batch-tokenizer "
     "--enable-http-worker-reuseport --enable-tokenizer-batch-encode --gc-threshold= --numa-bind "
     "--numa-bind-cpus= --numa-bind-nodes= --numa-node= --numa= --poll-batch-draft= --poll-batch= "
     "--poll-draft= --poll= --prio-batch-draft= --prio-batch= --prio-draft= --prio= "
     "--renderer-num-workers= --reuse-port --sleep-idle-seconds= --sleep-on-idle --threads-batch= "
     "--threads-http= --tokenizer-pool-size= --tokenizer-worker-num= --validation-workers="},
    {"0|off", "--device cuda:N computes all layers on that GPU, --device cpu none",
     "--fit-ctx= --fit-target= --fit= --gpu-layers= --n-cpu-ffn= --n-gpu-layers= --override-tensor="},
    {kAny, "--device cuda:N computes all layers on that GPU, --device cpu none",
     "--cpu-moe --kv-offload --list-devices --n-cpu-moe= --no-kv-offload --no-op-offload --op-offload"},
    {"0|0.0|none|None|{}|auto|-1",
     "weights beyond --memory-budget are streamed from disk; KV stays in memory (--kv-cache-memory)",
     "--cache-ram= --cpu-offload-gb= --cpu-offload-params= --kv-offloading-size= --offload-backend= "
     "--offload-group-size= --offload-mode= --offload-num-in-group= --offload-params= "
     "--offload-prefetch-step= --ple-offload-backend= --ple-offload-dir= --ple-offload-embedding= "
     "--swap-space="},
    {kNone, "KV stays in this process (--kv-cache-memory), and finished prefixes in it",
     "--decoupled-spec-bind-endpoint= --decoupled-spec-connect-endpoints= --decoupled-spec-rank= "
     "--decoupled-spec-role= --disaggregation-bootstrap-port= --disaggregation-decode-allocation-policy= "
     "--disaggregation-decode-enable-offload-kvcache --disaggregation-decode-enable-radix-cache "
     "--disaggregation-decode-extra-slots= --disaggregation-decode-host-receive-threshold= "
     "--disaggregation-decode-polling-interval= --disaggregation-decode-retraction-backup= "
     "--disaggregation-enable-kv-checksum --disaggregation-ib-device= --disaggregation-mode= "
     "--disaggregation-transfer-backend= --ec-manager-config= --ec-transfer-config= "
     "--enable-cumem-allocator --enable-draft-weights-cpu-backup --enable-flexkv --enable-hicache "
     "--enable-hierarchical-cache --enable-hisparse --enable-linker-mla-dedup --enable-lmcache "
     "--enable-memory-saver --enable-pd-role-switch --enable-pdmux --enable-response-store "
     "--enable-sleep-mode --enable-streaming-session --enable-unified-cache-external-linker "
     "--enable-weights-cpu-backup --file-storage-path= --flexkv-config-file= "
     "--hicache-host-memory-fraction= --hicache-host-memory-mode= --hicache-io-backend= "
     "--hicache-mem-layout= --hicache-ratio= --hicache-size= --hicache-storage-backend-extra-config= "
     "--hicache-storage-backend= --hicache-storage-prefetch-policy= "
     "--hicache-storage-prefetch-retry-max-attempts= --hicache-storage-prefetch-retry-poll-interval= "
     "--hicache-write-policy= --hierarchical-sparse-attention-extra-config= --hisparse-config= "
     "--kv-canary-sweep-interval= --kv-canary= --kv-offloading-backend= "
     "--kv-transfer-config= --lmcache-config-file= --lookup-cache-dynamic= --lookup-cache-static= "
     "--num-reserved-decode-tokens= --pdmux-config-path= --sleep-mode-backend= "
     "--sleep-mode-offload-cudagraph --sleep-preserve-parameter-names= --slot-save-path= --sm-group-num= "
     "--unified-cache-external-linker-backend= --unified-cache-external-linker-config="},
    {kNone,
     "KV cache events are published by --kv-events tcp://*:5557 and said again by --kv-events-replay; topic and sizes "
     "have options of their own",
     "--kv-events-config="},
    {kAny, "KV lies in blocks of this server's own; --kv-cache-memory says how much and --kv-cache-dtype as what",
     "--block-size= --c128-page-size= --calculate-kv-scales --checkpoint-min-step= --ctx-checkpoints= "
     "--defrag-thold= --disable-hybrid-kv-cache-manager --disable-hybrid-swa-memory "
     "--disable-sliding-window --enable-decoder-swa-bounded-replay --enable-encoder-swa-bounded-replay "
     "--grp-attn-n= --keep= --kv-cache-dtype-skip-layers= --kv-sharing-fast-prefill --kv-unified "
     "--kv-unified-per-slot= --max-seq-len-to-capture= --no-kv-unified --num-gpu-blocks-override= "
     "--page-size= --quantization-param-path= --swa-bounded-replay --swa-checkpoints= --swa-full "
     "--swa-full-tokens-ratio= --triton-attention-num-kv-splits= --triton-attention-reduce-in-fp32 "
     "--triton-attention-split-tile-size="},
    {kNone, "a sequence ends at --max-model-len; nothing of it is dropped", "--context-shift"},
    {kAny, "a sequence ends at --max-model-len; nothing of it is dropped", "--no-context-shift"},
    {"{}|0|none|None", "--speculate lookup guesses ahead from the text itself; draft models are not used",
     "--draft-max= --draft-min= --draft-n-min= --draft-n= --draft-p-min= --draft-p-split= --draft= "
     "--num-speculative-tokens= --spec-type= --speculative-algorithm= --speculative-config= "
     "--speculative-tokens="},
    {kNone, "--speculate lookup guesses ahead from the text itself; draft models are not used",
     "--cache-type-k-draft= --cache-type-v-draft= --cpu-moe-draft --device-draft= --diffusion-config= "
     "--dllm-algorithm-config= --dllm-algorithm= --dllm-fdfo --enable-multi-layer-eagle "
     "--gpu-layers-draft= --model-draft= --n-cpu-moe-draft= --n-gpu-layers-draft= --override-tensor-draft= "
     "--per-request-spec-decode-metrics= --spec-draft-backend-sampling --spec-draft-cpu-mask-batch= "
     "--spec-draft-cpu-mask= --spec-draft-cpu-moe --spec-draft-cpu-range= --spec-draft-cpu-strict-batch= "
     "--spec-draft-cpu-strict= --spec-draft-device= --spec-draft-model= --spec-draft-n-cpu-moe= "
     "--spec-draft-n-max= --spec-draft-n-min= --spec-draft-ncmoe= --spec-draft-ngl= "
     "--spec-draft-override-tensor= --spec-draft-p-min= --spec-draft-p-split= --spec-draft-poll-batch= "
     "--spec-draft-poll= --spec-draft-prio-batch= --spec-draft-prio= --spec-draft-threads-batch= "
     "--spec-draft-threads= --spec-draft-type-k= --spec-draft-type-v= --spec-method= --spec-model= "
     "--spec-ngram-map-k-min-hits= --spec-ngram-map-k-size-m= --spec-ngram-map-k-size-n= "
     "--spec-ngram-map-k4v-min-hits= --spec-ngram-map-k4v-size-m= --spec-ngram-map-k4v-size-n= "
     "--spec-ngram-min-hits= --spec-ngram-mod-n-match= --spec-ngram-mod-n-max= --spec-ngram-mod-n-min= "
     "--spec-ngram-simple-min-hits= --spec-ngram-simple-size-m= --spec-ngram-simple-size-n= "
     "--spec-ngram-size-m= --spec-ngram-size-n= --spec-synth-len= --spec-synth-rates= --spec-tokens= "
     "--spec-trace-dir= --speculation-max-batch-size= --speculative-accept-threshold-acc= "
     "--speculative-accept-threshold-single= --speculative-adaptive --speculative-adaptive-config= "
     "--speculative-attention-mode= --speculative-dflash-block-size= "
     "--speculative-domino-candidate-pool-size= --speculative-draft-attention-backend= "
     "--speculative-draft-kv-cache-dtype= --speculative-draft-load-format= --speculative-draft-model-path= "
     "--speculative-draft-model-quantization= --speculative-draft-model-revision= "
     "--speculative-draft-model= --speculative-draft-sink-size= --speculative-draft-window-size= "
     "--speculative-dsa-topk-backend= --speculative-dspark-align-verify-tokens-to-graph-tier "
     "--speculative-dspark-block-size= --speculative-dspark-confidence-sts-path= "
     "--speculative-dspark-sps-table-path= --speculative-eagle-topk= "
     "--speculative-enable-w4a4-mxfp4-megamoe= --speculative-model= --speculative-moe-a2a-backend= "
     "--speculative-moe-runner-backend= --speculative-ngram-capacity= "
     "--speculative-ngram-external-corpus-max-tokens= --speculative-ngram-external-corpus-path= "
     "--speculative-ngram-external-sam-budget= --speculative-ngram-match-type= "
     "--speculative-ngram-max-bfs-breadth= --speculative-ngram-max-trie-depth= "
     "--speculative-ngram-min-bfs-breadth= --speculative-num-draft-tokens= --speculative-num-steps= "
     "--speculative-token-map= --speculative-use-block-verification --speculative-use-rejection-sampling "
     "--threads-batch-draft= --threads-draft="},
    {kAny, "chats are written by the model's own template, and calls read in the form that it asks for",
     "--chat-template-content-format= --enable-auto-tool-choice --exclude-tools-when-tool-choice-none "
     "--hf-chat-template-name= --jinja --no-prefill-assistant --no-skip-chat-parsing --response-role= "
     "--skip-chat-parsing --tool-call-parser= --tool-strict-level="},
    {kNone,
     "chats are written by the model's own template or --chat-template, and calls are read in the form that it asks "
     "for",
     "--agent --completion-template= --constrained-json-whitespace-pattern= --mcp-servers-config= "
     "--mcp-servers-json= --no-agent --no-jinja --tool-parser-plugin= --tool-server= --tools-runtime= "
     "--tools= --trust-request-chat-template"},
    {"{}|-1|auto|on",
     "the model's chat template decides; --default-chat-template-kwargs '{\"enable_thinking\": false}' says it for all "
     "requests, \"enable_thinking\" and \"reasoning_effort\" for one",
     "--anthropic-disabled-thinking-effort= --enable-strict-thinking --reasoning-budget-message= --reasoning-budget= "
     "--reasoning-config= --reasoning-effort-map= --reasoning-effort= --reasoning= --strip-thinking-cache"},
    {"auto|deepseek|deepseek-legacy",
     "what a model thinks comes as \"reasoning_content\" where its chat template marks it; --reasoning-parser none "
     "leaves "
     "it in the content",
     "--reasoning-format="},
    {kAny, "what a model thinks is told from its answer where its chat template marks it (--reasoning-parser)",
     "--cohere-is-reasoning-model --enable-reasoning --no-reasoning-preserve --reasoning-preserve"},
    {kNone, "no code of others is run in the server",
     "--additional-config= --enable-custom-logit-processor --enable-watermark --io-processor-plugin= "
     "--logits-processors= --middleware= --model-class-overrides= --reasoning-parser-plugin= "
     "--watermark-config= --watermark-delta= --watermark-gamma="},
    {kAny, "structured output is always served, by one engine of its own",
     "--constrained-json-disable-any-whitespace --constrained-json-max-whitespace-cnt= "
     "--disable-outlines-disk-cache --grammar-backend= --guided-decoding-backend= "
     "--structured-outputs-config="},
    {"{}", "say it in the request, or for all in the model's generation_config.json",
     "--adaptive-decay= --adaptive-target= --backend-sampling --dry-allowed-length= --dry-base= "
     "--dry-multiplier= --dry-penalty-last-n= --dry-sequence-breaker= --dynatemp-exp= --dynatemp-range= "
     "--frequency-penalty= --ignore-eos --logit-bias= --min-p= --mirostat-ent= --mirostat-lr= --mirostat= "
     "--override-generation-config= --preferred-sampling-params= --presence-penalty= --repeat-last-n= "
     "--repeat-penalty= --sampler-seq= --samplers= --sampling-seq= --temp= --temperature= --top-k= "
     "--top-n-sigma= --top-nsigma= --top-p= --typical-p= --typical= --xtc-probability= --xtc-threshold="},
    {"-1", "say it in the request: \"max_tokens\"", "--n-predict= --predict="},
    {kNone, "say it in the request: \"response_format\" or \"structured_outputs\"",
     "--grammar-file= --grammar= --json-schema-file= --json-schema="},
    {kNone, "say it in the request; \"skip_special_tokens\": false shows special tokens, \"stop\" ends at a text",
     "--binary-file= --control-vector-layer-range= --control-vector-scaled= --control-vector= "
     "--embd-normalize= --escape --file= --no-escape --override-kv= --reverse-prompt= --special "
     "--spm-infill"},
    {kAny, "a request without \"seed\" draws one of its own; give \"seed\" in the request for the same text again",
     "--random-seed= --seed="},
    {kAny, "answers hold what the request asks for (docs/api.md)",
     "--allow-auto-truncate --cohere-format= --enable-per-request-metrics "
     "--enable-precise-embedding-interpolation --enable-prompt-tokens-details "
     "--enable-return-aux-hidden-states --enable-return-hidden-states --enable-return-indexer-topk "
     "--enable-return-routed-experts --fingerprint-mode= --fingerprint-value= --logprobs-mode= "
     "--max-best-of= --max-logprobs= --max-stop-sequences= --return-aux-hidden-state-layer-ids= "
     "--return-hidden-states-mode= --return-input-ids --return-output-ids --return-sampling-mask "
     "--sampling-mask-max-tokens= --show-time-cost --stream-response-default-include-usage"},
    {"{}|none|0|0.0|-1|1", "the model's own config.json or GGUF metadata says it",
     "--attention-config= --hf-config-path= --hf-overrides= --json-model-override-args= --rope-freq-base= "
     "--rope-freq-scale= --rope-scale= --rope-scaling= --rope-theta= --yarn-attn-factor= --yarn-beta-fast= "
     "--yarn-beta-slow= --yarn-ext-factor= --yarn-orig-ctx="},
    {kNone, "the tokenizer is the one beside the model; put the files there",
     "--enable-prompt-embeds --skip-tokenizer-init --tokenizer-config-path= --tokenizer-path= --tokenizer="},
    {kNone, "weights keep their file's format; --quant q8_0 or q4_0 makes them smaller",
     "--allow-deprecated-quantization --enable-fp32-lm-head --enable-tf32-matmul= "
     "--modelopt-checkpoint-restore-path= --modelopt-checkpoint-save-path= --modelopt-export-path= "
     "--modelopt-quant= --quantization-config= --quantize-and-serve --quantize= --rl-on-policy-target= "
     "--rl-quant-profile="},
    {"generate|auto|none", "chat, completions and embeddings (--pooling) are always served",
     "--convert= --runner= --task="},
    {kAny, "chat, completions and embeddings (--pooling) are always served",
     "--embedding --embedding-dim= --embeddings --is-embedding --override-pooler-config= --pooler-config="},
    {kNone, "chat, completions and embeddings are what is served",
     "--asr-max-buffer-seconds= --asr-max-concurrent-sessions= --enable-flash-late-interaction "
     "--enable-mis --rerank --reranking"},
    {kNone, "only text is served here, at / of --host and --port; a proxy in front can do more",
     "--api-prefix= --enable-adaptive-dispatch-to-encoder --enable-multimodal --encoder-bootstrap-port= "
     "--encoder-only --encoder-register-urls= --encoder-transfer-backend= --encoder-urls= "
     "--fastapi-root-path= --language-only --media-path= --mmproj-url= --mmproj= --path= --root-path= "
     "--tags= --uds= --ui-config-file= --ui-config= --webui-config-file= --webui-config="},
    {kAny, "only text is served here",
     "--allowed-local-media-path= --allowed-media-domains= --disable-chunked-mm-input "
     "--disable-fast-image-processor --enable-broadcast-mm-inputs-process --enable-mm-embeds "
     "--enable-mm-global-cache --enable-prefix-mm-cache --image-max-tokens= --image-min-tokens= "
     "--image-processor-backend= --interleave-mm-strings --language-model-only "
     "--limit-mm-data-per-request= --limit-mm-per-prompt= --media-io-kwargs= --media-url-max-file-size-mb= "
     "--mm-attention-backend= --mm-device-do-normalize --mm-enable-dp-encoder= --mm-encoder-attn-backend= "
     "--mm-encoder-attn-dtype= --mm-encoder-fp8-scale-path= --mm-encoder-fp8-scale-save-margin= "
     "--mm-encoder-fp8-scale-save-path= --mm-encoder-only --mm-encoder-tp-mode= --mm-feature-transport= "
     "--mm-global-cache-backend= --mm-hasher-algorithm= --mm-io-worker-num= --mm-ipc-gpu-memory-gb= "
     "--mm-preprocess-cache-size-mb= --mm-process-config= --mm-processor-cache-gb= "
     "--mm-processor-cache-type= --mm-processor-device= --mm-processor-kwargs= --mm-processor-worker-num= "
     "--mm-shm-cache-max-object-size-mb= --mm-tensor-ipc= --mmproj-auto --mmproj-offload "
     "--mtmd-batch-max-tokens= --no-mmproj --no-mmproj-auto --no-mmproj-offload --skip-mm-profiling "
     "--trust-mm-content-hashes --trust-request-mm-kwargs --video-ffmpeg-dir= --video-fps= "
     "--video-pruning-method= --video-pruning-rate= --video-timestamp-interval="},
    {kAny, "routes are those of docs/api.md; every answer has an x-request-id",
     "--allow-credentials --allowed-headers= --allowed-methods= --cors-allow-credentials= "
     "--cors-allow-header= --cors-allow-method= --cors-credentials --cors-expose-header= --cors-headers= "
     "--cors-methods= --disable-fastapi-docs --enable-offline-docs --enable-request-id-headers "
     "--enable-server-load-tracking "
     "--h11-max-header-count= --h11-max-incomplete-event-size= --http2-initial-connection-window-size= "
     "--http2-max-concurrent-streams= --no-slots --no-ui --no-ui-mcp-proxy --no-webui --no-webui-mcp-proxy "
     "--slots --ui --ui-mcp-proxy --webui --webui-mcp-proxy"},
    {kAny, "GET /tokenizer_info is always served", "--enable-tokenizer-info-endpoint"},
    {kAny, "GET /props is always served; properties are set by options and by POST /lora-adapters", "--props"},
    {kAny, "the certificate is read again when the process gets SIGHUP", "--enable-ssl-refresh"},
    {kAny, "TLS is 1.2 or 1.3, with the ciphers that OpenSSL holds to be secure", "--ssl-ciphers="},
    {"0", "clients show keys (--api-key, --keys), not certificates", "--ssl-cert-reqs="},
    {kNone, "clients show keys (--api-key, --keys), not certificates; a proxy in front can ask for them",
     "--ssl-ca-certs="},
    {kNone, "write the key to a file of its own without a password (openssl pkey -in KEY -out PLAIN)",
     "--ssl-keyfile-password="},
    {kNone, "this server speaks HTTP/1.1; a proxy in front may speak HTTP/2 to clients", "--enable-http2"},
    {kNone, "metrics are at GET /metrics, logs on standard output",
     "--enable-trace --ngrok --ngrok-authtoken= --ngrok-edge= --otlp-endpoint= --otlp-service-name= "
     "--otlp-traces-endpoint= --sidecar-args= --sidecar= --smg-http-sidecar-port= --trace-modules="},
    {kAny, "the server watches over its own time limits (docs/api.md) and is warm when it says that it serves",
     "--completion-bash --crash-dump-folder= --env --fail-on-environ-validation= --no-perf --no-warmup "
     "--perf --skip-server-warmup --soft-watchdog-timeout= --sse-keep-alive-interval= --sse-ping-interval= "
     "--timeout= --warmup --warmups= --watchdog-config= --watchdog-timeout="},
    {kAny, "GET /metrics is always served",
     "--bucket-e2e-request-latency= --bucket-inter-token-latency= --bucket-time-to-first-token= "
     "--collect-detailed-traces= --cudagraph-metrics --custom-histogram-buckets= "
     "--enable-forward-pass-metrics --enable-metrics --enable-metrics-for-all-schedulers "
     "--enable-mfu-metrics --export-metrics-to-file --export-metrics-to-file-dir= --extra-metric-labels= "
     "--forward-pass-metrics-ipc-name= --forward-pass-metrics-worker-id= --generation-tokens-buckets= "
     "--kv-cache-metrics --kv-cache-metrics-sample= --metrics --prompt-tokens-buckets= "
     "--show-hidden-metrics-for-version= --tokenizer-metrics-allowed-custom-labels= "
     "--tokenizer-metrics-custom-labels-header="},
    {kAny, "each request has a line in the log; --log-level and --log-format say how much and in which form",
     "--aggregate-engine-logging --decode-log-interval= --disable-access-log-for-endpoints= "
     "--disable-log-requests --disable-log-stats --disable-uvicorn-access-log --enable-log-deltas "
     "--enable-log-outputs --enable-log-requests --enable-logging-iteration-details "
     "--enable-request-time-stats-logging --gc-warning-threshold-secs= --log-colors= --log-config-file= "
     "--log-disable --log-error-stack --log-file= --log-level-http= --log-prefix --log-prompts-dir= "
     "--log-requests --log-requests-format= --log-requests-level= --log-requests-target= --log-test "
     "--log-timestamps --log-verbose --log-verbosity= --logging-config= --max-log-len= --no-log-jsonl "
     "--no-log-prefix --no-log-timestamps --uvicorn-access-log-exclude-prefixes= --uvicorn-log-level= "
     "--verbose --verbosity="},
    {kAny, "requests always join the batch as they come", "--cont-batching"},
    {kNone, "requests always join the batch as they come", "--no-cont-batching"},
    {kNone,
     "say it in the request: \"stream_options\": {\"include_usage\": true}, \"return_tokens_as_token_ids\": true",
     "--enable-force-include-usage --return-tokens-as-token-ids"},
    {kAny, "how a step is computed is chosen here by itself, for this processor",
     "--attention-backend= --aux-output-config= --backend= --bf16-gemm-backend= --compilation-config= "
     "--compile --compile-batch-size= --compile-max-batch-size= --cuda-graph-backend-decode= "
     "--cuda-graph-backend-prefill= --cuda-graph-bs-decode= --cuda-graph-bs-prefill= --cuda-graph-bs= "
     "--cuda-graph-config= --cuda-graph-max-bs-decode= --cuda-graph-max-bs-prefill= --cuda-graph-max-bs= "
     "--cuda-graph-max-seq-len-prefill= --cuda-graph-prefill-max-context= --cudagraph-capture-sizes= "
     "--dbo-decode-token-threshold= --dbo-prefill-token-threshold= --debug-cuda-graph "
     "--debug-tensor-dump-input-file= --debug-tensor-dump-layers= --debug-tensor-dump-output-folder= "
     "--decode-attention-backend= --deepep-config= --deepep-dispatcher-output-dtype= --deepep-mode= "
     "--deepep-v2-mode= --disable-aiter-allreduce-fusion-in-decode "
     "--disable-aiter-allreduce-fusion-in-prefill --disable-cascade-attn --disable-cuda-graph "
     "--disable-cuda-graph-padding --disable-custom-kernels --disable-decode-cuda-graph "
     "--disable-flashinfer-autotune --disable-flashinfer-cutlass-moe-fp4-allgather "
     "--disable-prefill-cuda-graph --disable-shared-experts-fusion --dsa-decode-backend= "
     "--dsa-paged-mqa-logits-backend= --dsa-prefill-backend= --dsa-topk-backend= --dsa-triton-union= "
     "--dsv4-attn-backend= --dsv4-prefill-backend= --eager --enable-aiter-allreduce-fusion "
     "--enable-amd-monokernel --enable-cudagraph-gc --enable-dbo --enable-deepseek-v4-fp4-indexer "
     "--enable-deterministic-inference --enable-dsa-cache-layer-split --enable-dsa-fused-indexer "
     "--enable-ep-weight-filter --enable-eplb --enable-flashinfer-autotune "
     "--enable-fused-moe-sum-all-reduce --enable-fused-qk-norm-rope --enable-int8-mamba-checkpoint "
     "--enable-layerwise-nvtx-marker --enable-layerwise-nvtx-tracing --enable-lean-attention "
     "--enable-linear-replayssm --enable-linear-replayssm-spec --enable-mamba-cache-stochastic-rounding "
     "--enable-mamba-shared-prefix-checkpoint --enable-megamoe-for-layernorm-sp --enable-mscclpp "
     "--enable-nvidia-megakernel --enable-paged-experts --enable-profile-cuda-graph "
     "--enable-shm-tensor-arena --enable-single-batch-overlap --enable-symm-mem --enable-torch-compile "
     "--enable-torch-compile-debug-mode --enable-torch-symm-mem --enable-trace-replay "
     "--enable-two-batch-overlap --enable-w4a4-mxfp4-megamoe --enable-waterfill "
     "--enforce-disable-flashinfer-allreduce-fusion --enforce-shared-experts-fusion "
     "--ep-dispatch-algorithm= --ep-num-redundant-experts= --eplb-algorithm= --eplb-config= "
     "--eplb-min-rebalancing-utilization-threshold= --eplb-rebalance-layers-per-chunk= "
     "--eplb-rebalance-num-iterations= --expert-balancedness-report-mode= "
     "--expert-distribution-recorder-buffer-size= --expert-distribution-recorder-mode= "
     "--expert-placement-strategy= --flash-attn= --flashinfer-a2a-dispatch-type= "
     "--flashinfer-allreduce-fusion-backend= --flashinfer-autotune-skip-ops= "
     "--flashinfer-mla-disable-ragged --flashinfer-mxfp4-moe-precision= --forward-hooks= "
     "--fp4-gemm-runner-backend= --fp8-gemm-runner-backend= --fuseep-mode= --gdn-prefill-backend= "
     "--init-expert-location= --int8-mamba-ckpt-size= --jit-monitor-mode= --jit-monitor-verbose "
     "--kda-decode-backend= --kda-prefill-backend= --kernel-config= --kt-cpuinfer= "
     "--kt-max-deferred-experts-per-token= --kt-method= --kt-num-gpu-experts= --kt-threadpool-count= "
     "--kt-weight-path= --linear-attn-backend= --linear-attn-decode-backend= "
     "--linear-attn-prefill-backend= --linear-attn-verify-backend= --linear-backend= "
     "--linear-replayssm-cache-len= --mamba-backend= --mamba-block-size= --mamba-cache-dtype= "
     "--mamba-cache-mode= --mamba-cache-philox-rounds= --mamba-full-memory-ratio= "
     "--mamba-max-states-per-path= --mamba-radix-cache-strategy= --mamba-ssm-cache-dtype= "
     "--mamba-ssm-dtype= --mamba-ssu-algorithm= --mamba-track-interval= --max-cudagraph-capture-size= "
     "--max-mamba-cache-size= --mlx-enable-sampling --moe-a2a-backend= --moe-backend= "
     "--moe-runner-backend= --monokernel --mooncake-ib-device= --msprobe-dump-config= "
     "--no-cors-credentials --no-spec-draft-backend-sampling --optimization-level= "
     "--paged-experts-num-resident= --performance-mode= --profiler-config= --qsa-indexer-dtype= "
     "--replayssm-buffer-len= --sampling-backend= --simple-io --sparse-indexer-topk-backend= "
     "--tbo-token-distribution-threshold= --torch-compile-max-bs= --use-fp64-gumbel --use-replayssm"},
};

}  // namespace

std::span<const ForeignGroup> foreign_groups() { return kGroups; }

}  // namespace loralei
