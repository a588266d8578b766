"""What secrets look like in logs: the shapes of vendors' keys, and the words that stand before others.

Kept apart from redact.py because it is a list. All are RE2 expressions: linear, whatever the text.
A group named `keep` is what stands before the secret and stays.
"""

from __future__ import annotations

VENDOR_KEYS: tuple[str, ...] = (
    r"\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z2-7]{16}\b",  # AWS
    r"\bAIza[\w-]{35}",  # Google API
    r"\bya29\.[\w-]{20,}",  # Google OAuth
    r"\bGOCSPX-[\w-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
    r"\bgithub_pat_\w{20,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt)-[\w.-]{16,}",  # GitLab
    r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"\bapi_org_[A-Za-z0-9]{20,}",
    r"\bsk-(?:proj-|svcacct-|admin-|ant-|or-|lf-)?[\w-]{16,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"\bnvapi-[\w-]{20,}",  # NVIDIA NGC
    r"\b(?:gsk|r8|csk|fw|tgp_v1|jina|voy|pa|key)_[A-Za-z0-9_-]{24,}",  # model hosts
    r"\b(?:pplx|xai|tvly|fal|luma)-[A-Za-z0-9_-]{20,}",
    r"\bwandb_v1_\w{20,}",
    r"\bxox[abeoprs]-[\w-]{10,}",  # Slack
    r"\bxapp-[\w-]{10,}",
    r"hooks\.slack\.com/(?:services|workflows)/[\w/]{10,}",
    r"discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}",
    r"\b[MNO][A-Za-z\d]{23,25}\.[\w-]{6}\.[\w-]{27,}",  # Discord bots
    r"\b\d{8,10}:AA[\w-]{32,34}",  # Telegram bots
    r"\b[spr]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"\bwhsec_[A-Za-z0-9+/=]{20,}",
    r"\bSG\.[\w-]{16,}\.[\w-]{16,}",  # SendGrid
    r"\bkey-[0-9a-f]{32}\b",  # Mailgun
    r"\bSK[0-9a-f]{32}\b",  # Twilio
    r"\bdapi[0-9a-f]{32}(?:-\d)?\b",  # Databricks
    r"\bdckr_(?:pat|oat)_[\w-]{20,}",  # Docker
    r"\bnpm_[A-Za-z0-9]{30,}",
    r"\bpypi-[\w-]{30,}",
    r"\brubygems_[0-9a-f]{40,}",
    r"\bdo[por]_v1_[0-9a-f]{40,}",  # DigitalOcean
    r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
    r"\bsq0(?:atp|csp|idp)-[\w-]{20,}",  # Square
    r"\bgl(?:sa|c)_[A-Za-z0-9_=+/]{20,}",  # Grafana
    r"\bsntry[su]_[A-Za-z0-9_=+/]{20,}",  # Sentry
    r"\blin_(?:api|oauth)_[A-Za-z0-9]{20,}",  # Linear
    r"\b(?:ntn|secret)_[A-Za-z0-9]{40,}",  # Notion
    r"\bfigd_[\w-]{20,}",
    r"\bKGAT_[0-9a-f]{20,}",  # Kaggle
    r"\bhv[sbr]\.[\w-]{20,}",  # Vault
    r"\bdp\.(?:st|pt|ct|sa)\.[\w.-]{20,}",  # Doppler
    r"\btskey-[\w-]{10,}",  # Tailscale
    r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",  # Terraform
    r"\bHRKU-[\w-]{20,}",
    r"\bAGE-SECRET-KEY-1[A-Z0-9]{40,}",
    r"\bEAA[A-Za-z0-9]{40,}",  # Meta
    r"\bLTAI[A-Za-z0-9]{12,20}\b",  # Alibaba Cloud
    r"\bAKID[A-Za-z0-9]{20,}",  # Tencent Cloud
    r"\beyJ[\w-]{8,}\.(?:eyJ)?[\w-]{8,}(?:\.[\w-]*)?",  # JSON web tokens
    r"\b(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-\w+) AAAA[A-Za-z0-9+/=]{20,}",
)

_TELLING_NAME = (
    r"(?:pass(?:word|wd|phrase|code|wort)|kennwort|wachtwoord|mot[ _-]de[ _-]passe|contrase(?:ñ|n)a|senha|pwd|secret(?:[_-]?(?:access[_-]?)?key)?|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|account[_-]?key|"
    r"private[_-]?key|signing[_-]?key|encryption[_-]?key|shared[_-]?key|client[_-]?secret|credentials?|"
    r"auth[_-]?token|access[_-]?token|refresh[_-]?token|bearer[_-]?token|session[_-]?token|id[_-]?token|"
    r"security[_-]?token|personal[_-]?token|service[_-]?token|bot[_-]?token|deploy[_-]?token|hub[_-]?token|"
    r"(?:private|job|api|user|csrf|upload|cluster|join)[_-]?token|"
    r"(?:wandb|openai|anthropic|comet|aws|azure|gcp|ngc|hf|s3|minio|ssh|license)[_-]?key|"
    r"hf[_-]?token|(?:hugging_?face|github|gitlab|slack|ngc|wandb|comet|neptune|vault|npm|pypi|tracking|"
    r"mlflow[\w]*)[_-](?:hub[_-])?token|sas[_-]?token|webhook)"
)
_VALUE = r"(?P<secret>\"[^\"]+(?:\"|$)|'[^']+(?:'|$)|[^\s,;\"'&<>)\]}]+)"

_IN_PROSE = r"(?:is|was|ist|war|lautet|est|es)"

ASSIGNMENTS: tuple[str, ...] = (
    # NAME=value, "name": "value", name: value, 'x_password' => 'value'
    rf"(?i)(?P<keep>\b[\w.-]*{_TELLING_NAME}[\"']?\]?\s*(?:=>|:=|[=:])\s*)" + _VALUE,
    # Of several words, to the line's end.
    r"(?i)(?P<keep>\bpassphrase[\"']?\s?(?:=>|:=|[=:])\s?)(?P<secret>[^\s,;\"'&<>)\]}]+(?: +[^\s,;\"'&<>)\]}=:]+){1,23})",
    # <password>value</password>, [password] value, password<TAB>value
    rf"(?i)(?P<keep><{_TELLING_NAME}>)(?P<secret>[^<]+)",
    rf"(?i)(?P<keep>\[{_TELLING_NAME}\]\s+|\b{_TELLING_NAME}\t+)" + _VALUE,
    # --password value
    rf"(?i)(?P<keep>(?:^|\s)--?[\w-]*(?:{_TELLING_NAME}|token)(?:\s+|=))" + _VALUE,
    r"(?P<keep>\b\w*SECRET_ACCESS_KEY\s+)(?P<secret>[A-Za-z0-9/+]{40})",
    r"(?P<keep>\b\w*_(?:TOKEN|PAT|PASS)[\"']?\]?\s?[=:]\s?)" + _VALUE,
    r"(?P<keep>\b(?:setenv|export)\s+\w*(?:TOKEN|KEY|SECRET|PASSWORD|PASS|PAT)\s+)" + _VALUE,
    r"(?i)(?P<keep>\blogin\([^\r\n)]*\b(?:key|token)\s?=\s?)" + _VALUE,
    r"(?i)(?P<keep>\b\w*key[\"']?\s?[=:]\s?[\"']?)(?P<secret>[0-9a-f]{40}\b)",  # W&B's, and other bare ones
    r"(?i)(?P<keep>\b(?:proxy-)?authorization[\"']?\s?[:=]\s?[\"']?(?:\w+\s)?)(?P<secret>[^\s\"',]+)",
    r"(?i)(?P<keep>\b(?:bearer|basic)\s)(?P<secret>[A-Za-z0-9._~+/=-]{12,})",
    r"(?i)(?P<keep>\bx-(?:api-key|auth-token|amz-security-token|goog-api-key)[\"']?\s?[:=]\s?[\"']?)(?P<secret>[^\s\"',]+)",
    r"(?i)(?P<keep>\b(?:set-)?cookie[\"']?\s?:\s?)(?P<secret>[^\r\n]+)",
    r"(?P<keep>\bsshpass\s+-p\s?)" + _VALUE,
    r"(?P<keep>\b(?:mysql|mariadb)\w*\b[^\r\n]*?\s-p)" + _VALUE,
    r"(?i)(?P<keep>\bhttps?://(?:[^\s/\"']*hooks?\.[^\s/\"']+/|[^\s\"']*/(?:web)?hooks?/))(?P<secret>[^\s\"'<>]+)",
    r"(?P<keep>\bcurl\b[^\r\n]*\s(?:-u|--user)\s?)" + _VALUE,
    r"(?i)(?P<keep>\bwandb(?::)? login\s(?:--\S+\s)*)(?P<secret>[\w-]{20,})",
)

PROSE = (
    r"(?i)(?P<keep>\b(?:pass(?:word|wd|phrase|code|wort)|kennwort|wachtwoord|mot de passe|contrase(?:ñ|n)a|senha|"
    r"api[ _-]?key|secret(?: key)?)(?: (?:for|of|für|de|para) (?:user |the )?[^\s:]{1,60})?"
    rf"(?:(?: now)? {_IN_PROSE}(?: now)?\s?:?\s|\s?:\s?))" + _VALUE
)
"""`the password for jane is hunter2`: what follows may be a word about it, too."""

LONE_ASSIGNMENT = r"(?i)(?P<keep>\b(?:token|jwt|session[_-]?id)[\"']?\]?\s?[=:]\s?[\"']?)(?P<secret>[\w.~+/=-]{8,})"
"""`token:` alone is mostly a piece of text to a language model: only what looks random is a secret."""

QUERY_VALUES = (
    r"(?i)(?P<keep>[?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|"
    r"awsaccesskeyid|googleaccessid|ossaccesskeyid|key-pair-id|policy|token|access_token|id_token|"
    r"api[_-]?key|apikey|key|auth|code|secret|password|client_secret|x-oss-signature|upload_id|jwt)=)"
    r"(?P<secret>[^&\s\"'<>)]+)"
)
"""Values in an address that let whoever holds it in: signed URLs, keys in queries."""

URL_CREDENTIALS = (
    r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]+://)(?P<secret>[^\s/\"'<>]+@|[^\s/\"'<>:@]+:[^\s\"'<>@]+@)"
)

PRIVATE_KEY_BLOCK = (
    r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)"
)
